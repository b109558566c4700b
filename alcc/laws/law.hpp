// SPDX-License-Identifier: Apache-2.0
//
// The deciders that run in the process: a fixed cap, the hand rule and a small learned policy, behind the gate of no
// harm and the guard of core/guard/guard.hpp, looks for the path's minimum RTT and the queue of others among it.
// States, the rule's product, heads and guard are those of core/states/; a test compares the decisions with those of
// agents/decide/.
#ifndef REINET_ALCC_LAW_HPP
#define REINET_ALCC_LAW_HPP

#include <cstdint>
#include <memory>

#include "alcc/laws/published.hpp"
#include "alcc/laws/settings.hpp"
#include "core/flow_stats.h"
#include "core/guard/guard.hpp"

namespace reinet {
class FlowStates;
}

namespace reinet::alcc {

class Law {
 public:
  // Writes the RTT to stay below into a record, 0 = unknown (core/states/target.hpp).
  void write_target(reinet_flow_stats& s, const Settings& settings) const;
  // Takes a record whose target is set; returns the cap in packets from now on, 0 = none.
  std::uint32_t decide(const reinet_flow_stats& s, const Settings& settings);
  std::uint32_t cap_pkts() const { return cap_pkts_; }
  // A published law decides at each look and knows neither target nor gate: it is a congestion control of its own.
  void look(const KernelView& view, std::uint64_t now_ns, const Settings& settings, std::uint64_t seed);
  // Of a window that moves with what is in flight nothing is missing: what more is let through would move it.
  bool grants_packets() const { return published_ && published_->grants_packets(); }
  std::uint64_t due_ns() const { return published_ ? published_->due_ns() : kNever; }

 private:
  std::shared_ptr<FlowStates> states_;  // a unique one would want its type known here
  Guard guard_;
  std::unique_ptr<PublishedLaw> published_;
  std::uint32_t cap_pkts_ = 0;
};

}  // namespace reinet::alcc

#endif
