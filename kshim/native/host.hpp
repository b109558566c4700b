// SPDX-License-Identifier: Apache-2.0
// What of ours the kernel holds, whoever loaded it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reinet {

struct Loaded {
  std::string kind;  // "prog" or "map"
  std::uint32_t id = 0;
  std::string name;
};

// Returns a descriptor of a BPF map. Needs CAP_SYS_ADMIN.
int open_map(std::uint32_t id);
// Returns the programs and maps whose names begin with prefix.
std::vector<Loaded> loaded(const std::string& prefix);
// Has the kernel count how long programs run and how often, until the descriptor that is returned is closed, also by
// the process' end. Needs CAP_SYS_ADMIN.
int count_runs();
// Tells the flows of the object that a control map belongs to, to go back to their own congestion control.
void ask_to_leave(std::uint32_t control_map_id);
// Returns the name of a wrapper of theirs; empty where the shim has registered nothing yet.
std::string wrapper_of(std::uint32_t control_map_id);
// Returns the number of the BPF link by which that wrapper is registered; 0 where nothing is yet, or an earlier version
// did it.
std::uint32_t link_of(std::uint32_t control_map_id);
// Tells whether a BPF link is there, whoever holds it. Takes no descriptor of it, which would keep it.
bool is_linked(std::uint32_t link);
// Tells whether the flows were told so, by whomever.
bool is_leaving(std::uint32_t control_map_id);

}  // namespace reinet
