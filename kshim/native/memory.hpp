// SPDX-License-Identifier: Apache-2.0
// What a loaded object shares with whoever reads its records and writes its caps: mapped once from descriptors, then
// used without any system call but poll. No capability is needed, and nothing but the caps can be written.
#pragma once

#include <cstdint>
#include <optional>

#include "kshim/native/mapping.hpp"
#include "kshim/native/ring.hpp"
#include "kshim/slot.h"

namespace reinet {

// Descriptors of BPF maps, and what they do not say of themselves.
struct Descriptors {
  int slots = -1, caps = -1, counters = -1, records = -1;
  int events = -1;  // -1 = no ACKs are recorded
  std::uint32_t max_flows = 0;
  std::uint32_t records_bytes = 0;
  std::uint32_t events_bytes = 0;
  std::uint32_t default_target_us = 0;
};

class Memory {
 public:
  // The descriptors stay the caller's, and open as long as this lives.
  explicit Memory(const Descriptors& of)
      : max_flows_(of.max_flows),
        default_target_us_(of.default_target_us),
        slots_(of.slots, sizeof(reinet_slot) * of.max_flows, Access::read, "slots"),
        caps_(of.caps, sizeof(reinet_cap) * of.max_flows, Access::write, "caps"),
        counters_(of.counters, sizeof(reinet_counters), Access::read, "counters"),
        records(of.records, of.records_bytes, "records") {
    if (of.events >= 0) events.emplace(of.events, of.events_bytes, "recorded ACKs");
  }

  std::uint32_t max_flows() const { return max_flows_; }
  // No slot from here on was ever used.
  std::uint32_t slots_used() const {
    return static_cast<std::uint32_t>(__atomic_load_n(&counters_->slots_used, __ATOMIC_ACQUIRE));
  }
  std::uint32_t default_target_us() const { return default_target_us_; }
  const reinet_slot& slot(std::uint32_t index) const { return slots_[index]; }
  reinet_cap& cap(std::uint32_t index) const { return caps_[index]; }
  const reinet_counters& counters() const { return *counters_; }

 private:
  std::uint32_t max_flows_, default_target_us_;
  Mapping<const reinet_slot> slots_;
  Mapping<reinet_cap> caps_;
  Mapping<const reinet_counters> counters_;

 public:
  Ring records;
  std::optional<Ring> events;
};

}  // namespace reinet
