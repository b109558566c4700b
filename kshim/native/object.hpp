// SPDX-License-Identifier: Apache-2.0
// The BPF object in the kernel: loaded, registered and attached as a whole or not at all. Nothing is pinned: all of it
// hangs on file descriptors of this process and goes with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kshim/native/mapping.hpp"
#include "kshim/native/memory.hpp"
#include "kshim/native/owned_fd.hpp"
#include "kshim/slot.h"

struct bpf_link;
struct bpf_object;
struct bpf_program;

namespace reinet {

struct Options {
  // What to wrap: congestion controls of slot.h's that the host has, each with the name to register, at most 15 bytes.
  // The names end alike, so that one tells all.
  std::vector<std::pair<std::string, std::string>> wrappers;
  std::uint32_t max_flows = 0;
  std::uint32_t records_bytes = 0;  // ring buffer, power of two
  std::uint32_t events_bytes = 0;   // ring buffer of recorded ACKs, 0 = record none
  reinet_period_config period = {REINET_MIN_PERIOD_NS, 1, 0};
  std::uint32_t default_target_us = 0;
  int flows_map_fd = -1;  // another shim's reinet_flows in the place of an own one; sweep keeps to the sockets in it
};

class Object {
 public:
  explicit Object(const Options& options);
  ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  // Gives the wrappers their names on this host. Fails with EEXIST where somebody else has one of them.
  void register_wrappers();
  // Chooses the new flows of these cgroup v2 folders, and of no others: called again, it follows what came and went.
  // Flows that were chosen before stay. A cgroup that cannot be attached to keeps no other from it: the call fails with
  // the first such error when all were tried. Where the first call fails nothing stays attached.
  void attach(const std::vector<std::string>& cgroups);
  // Takes over the open flows of the cgroups that attach was given last, in every network namespace that can be
  // entered. Returns how many wait for a later call, since they recover from a loss, and whether there was time for
  // every namespace.
  std::pair<std::uint32_t, bool> adopt();
  // Undoes attach. No flow is switched from here, which would make its congestion control begin anew: each goes back to
  // its own at its next ACK and takes along what that has learned. Until then the wrapper stays on it, inert.
  void detach();
  // Switches the sockets that run a congestion control of one of the wrappers' names back to the plain one, whoever
  // registered it, in every network namespace that can be entered, those that only a descriptor leads to among them.
  // With flows_map_fd only those in that map; without, register_wrappers before it keeps the names from shims that
  // start.
  void sweep();
  // Counts the sockets in reinet_flows by network namespace, of which it reaches those that sweep reaches.
  std::map<std::uint64_t, std::uint32_t> where() const;
  // Moves one period by one event, by the kernel's copy of the rule.
  void replay(reinet_replay& step) const;

  // Ends every lease, whoever wrote it.
  void lift_caps() const;

  // What the reader and the cap writer need; valid as long as this lives.
  Descriptors descriptors() const;

 private:
  struct CloseObject {
    void operator()(bpf_object*) const;
  };
  struct CloseLink {
    void operator()(bpf_link*) const;
  };
  struct Wrapper {
    std::string structure;  // in the BPF object
    std::string name;       // as registered
  };
  void set_up_rodata();
  void set_up_wrappers();
  void fill_free_slots() const;
  std::uint64_t choose_from(const std::string& cgroup);
  int map_fd(const char* name) const;
  bpf_program* find_program(const char* name) const;
  // Runs an iterator to its end, in the network namespace of the calling thread; gives what its program wrote.
  std::string iterate(const char* program) const;

  Options options_;
  std::unique_ptr<bpf_object, CloseObject> object_;
  Mapping<reinet_cap> caps_;
  Mapping<reinet_control> control_;
  std::vector<Wrapper> wrappers_;
  std::vector<OwnedFd> registrations_;  // the struct_ops links: closing one unregisters
  bool attached_ = false;
  std::map<std::uint64_t, std::unique_ptr<bpf_link, CloseLink>> sockops_;  // by the cgroup's number
};

}  // namespace reinet
