// SPDX-License-Identifier: Apache-2.0
// Which flow of each slot the records given out belong to: one that had a record ends with exactly one CLOSED.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/flow_stats.h"

namespace reinet {

class Ledger {
 public:
  explicit Ledger(std::uint32_t slots) : of_(slots) {}

  // Returns the flow whose records were given out last, 0 = none that is open.
  std::uint64_t owner(std::uint32_t slot) const { return of_[slot].open; }
  // Returns true for a flow that has had its CLOSED. The kernel sends that before it gives the slot back, so the slot
  // may still name the flow.
  bool has_closed(std::uint32_t slot, std::uint64_t cookie) const { return of_[slot].closed == cookie; }

  void take(const reinet_flow_stats& record) {
    Flows& flows = of_[record.slot];
    const bool closed = record.flags & REINET_FLAG_CLOSED;
    if (closed && flows.open != record.cookie) {  // nobody heard of it, or heard that it closed
      flows.closed = record.cookie;
      return;
    }
    if (flows.open != record.cookie) close(record.slot, record.time_ns);
    flows.open = closed ? 0 : record.cookie;
    if (closed)
      flows.closed = record.cookie;
    else if (flows.closed == record.cookie)  // its socket has connected anew
      flows.closed = 0;
    taken_.push_back(record);
  }

  // Ends the flow of a slot whose own CLOSED was lost.
  void close(std::uint32_t slot, std::uint64_t now_ns) {
    if (!of_[slot].open) return;
    reinet_flow_stats record{};
    record.cookie = of_[slot].closed = std::exchange(of_[slot].open, 0);
    record.slot = slot;
    record.time_ns = now_ns;
    record.flags = REINET_FLAG_CLOSED;
    taken_.push_back(record);
  }

  bool empty() const { return taken_.empty(); }
  std::vector<reinet_flow_stats> give() { return std::exchange(taken_, {}); }

 private:
  struct Flows {
    std::uint64_t open = 0, closed = 0;
  };
  std::vector<Flows> of_;  // by slot
  std::vector<reinet_flow_stats> taken_;
};

}  // namespace reinet
