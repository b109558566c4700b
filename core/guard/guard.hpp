// SPDX-License-Identifier: Apache-2.0
//
// The last check before a cap reaches a socket. What fails it stays uncapped: the kernel's own control is always safe.
//
// One verdict needs care. A target below 1.1 x the path's minimum RTT cannot be kept, and the flow stays uncapped; but
// what is known of the minimum may be a queue, the flow's own or that of others that were there before. So long flows
// that keep a queue are held back together now and then (min_rtt_look.hpp), until they see their path; short ones never
// are. And a queue that no cap shortens is that of others: beside them a capped flow would give its share away
// (others.hpp). Nor does a cap shorten a queue that is empty (empty_queue.hpp).
#ifndef REINET_GUARD_HPP
#define REINET_GUARD_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/guard/empty_queue.hpp"
#include "core/guard/min_rtt_look.hpp"
#include "core/guard/others.hpp"
#include "core/states/delay_ratio.hpp"
#include "core/states/feature.hpp"
#include "core/states/heads.hpp"
#include "core/states/target.hpp"

namespace reinet {

// A window at most doubles in a round trip (slow start), so a cap that rises faster than by 4 in one decision allows
// nothing that the flow could use before the next one; what would be let loose is a mistake.
constexpr double kMostRise = 4.0;
// The whole span of the widest head in one decision, from 4 to 1/4 of the rule's product: no model falls further unless
// the product itself collapsed too. From the paper's ceiling to its floor a cap needs four decisions. Simulated, 24
// runs of 30 s (six drawn links, Cubic and BBR, 20 and 80 ms, +30ms), neither bound moves a cap of default, per-rtt or
// the rule; a rise of 2 or a fall of 4 at most moves up to 0.6 % of the caps, and up to six of the 24 runs with them.
constexpr double kMostFall = 16.0;

// Why a flow is uncapped, by the numbers of Why (agents/decide/verdicts.py, which has the words); none = it is capped.
enum class Refusal : std::uint8_t {
  none = 0,
  chose_none = 1,
  no_queue = 2,
  unmeasured = 3,
  no_target = 4,
  too_tight = 5,
  not_finite = 6,
  out_of_range = 7,
  others_queue = 20,
};

// What becomes of one record, as VERDICT_DTYPE of core/guard/__init__.py has it.
#pragma pack(push, 1)
struct Verdict {
  Refusal code;
  std::uint32_t wanted_pkts;   // the cap as the agent returned it
  std::uint32_t allowed_pkts;  // what gate and guard left of it, 0 = none
  std::uint32_t target_us;
  std::uint32_t min_rtt_us;
};
#pragma pack(pop)

// Whose caps are judged, and how.
struct GuardRules {
  std::uint32_t ceiling_pkts = kMaxCapPkts;
  bool bounds_steps = false;    // each cap stays near the one in force; evaluations do without: a cap is what it says
  bool looks = true;            // for true minimum RTTs; not where a cap is to be what it says from the first packet on
  bool aims_at_target = false;  // flows that wait in a queue of others are left alone, and empty queues get more
};

// Returns whether any cap may be applied: the path is known, and so is a target that can be kept on it.
inline bool may_be_capped(const reinet_flow_stats& s) {
  return rtt_known(s.min_rtt_us) && s.target_us >= kLeastTargetPerRtt * s.min_rtt_us;
}

// Returns what forbids this cap, 0 = no cap, whatever went before.
inline Refusal refusal_of(const reinet_flow_stats& s, std::uint32_t cap_pkts, std::uint32_t ceiling_pkts) {
  if (!rtt_known(s.min_rtt_us)) return Refusal::unmeasured;
  if (!may_be_capped(s)) return s.target_us ? Refusal::too_tight : Refusal::no_target;
  if (cap_pkts == kInvalidCapPkts) return Refusal::not_finite;
  if (cap_pkts != 0 && (cap_pkts < kMinCapPkts || cap_pkts > ceiling_pkts)) return Refusal::out_of_range;
  return Refusal::none;
}

// Returns the cap, no further from what is in force than kMostRise and kMostFall let it, and never above the ceiling; 0
// stays 0.
inline std::uint32_t bound_step_pkts(const reinet_flow_stats& s, std::uint32_t cap_pkts, std::uint32_t ceiling_pkts) {
  if (cap_pkts == 0) return 0;
  const double in_force_pkts = s.cap_pkts ? s.cap_pkts : s.cwnd_pkts;
  const double low_pkts = std::max<double>(std::ceil(in_force_pkts / kMostFall), kMinCapPkts);
  const double high_pkts = std::max<double>({in_force_pkts, 1.0 * s.cwnd_pkts, 1.0 * kMinCapPkts}) * kMostRise;
  return std::min(static_cast<std::uint32_t>(std::clamp<double>(cap_pkts, low_pkts, high_pkts)), ceiling_pkts);
}

// What the guard knows of one flow.
class Guard {
 public:
  // Takes a record with an RTT sample, the cap that the agent wants (0 = none) and whether the flow's gate is open.
  Verdict judge(const reinet_flow_stats& s, std::uint32_t wanted_pkts, bool may_cap, const GuardRules& rules) {
    const std::uint32_t asked_pkts = may_cap ? wanted_pkts : 0;
    Refusal why = refusal_of(s, asked_pkts, rules.ceiling_pkts);
    const bool out_of_reach = why == Refusal::too_tight;
    const bool may_look = why == Refusal::none || out_of_reach;  // a look that shows the path may mend the latter
    const bool yields = rules.aims_at_target && others_.update(s);
    if (rules.aims_at_target) empty_.update(s);
    would_cap_ = asked_pkts != 0 && may_look && !yields;
    const std::uint32_t held_pkts = rules.looks ? look_.hold_pkts(s, out_of_reach, would_cap_) : 0;

    if (why == Refusal::none && asked_pkts != 0 && yields) why = Refusal::others_queue;
    std::uint32_t cap_pkts = why == Refusal::none ? bounded_pkts(s, asked_pkts, rules) : 0;
    if (held_pkts != 0 && may_look) {  // a flow that is looked at gets less, and no reason
      cap_pkts = std::min(held_pkts, cap_pkts ? cap_pkts : rules.ceiling_pkts);
      why = Refusal::none;
    }
    if (why == Refusal::none && cap_pkts == 0)
      why = may_cap || wanted_pkts == 0 ? Refusal::chose_none : Refusal::no_queue;
    return {why, wanted_pkts, cap_pkts, s.target_us, s.min_rtt_us};
  }

  // Takes a record with an RTT sample on which nobody decides, as a later one of the flow is there by now.
  void see(const reinet_flow_stats& s, const GuardRules& rules) {
    if (rules.aims_at_target) {
      others_.update(s);
      empty_.update(s);
    }
    const bool out_of_reach = refusal_of(s, 0, rules.ceiling_pkts) == Refusal::too_tight;
    if (rules.looks) look_.hold_pkts(s, out_of_reach, would_cap_);
  }

 private:
  // Returns a sound cap within what may change in one decision, and no less than a question about the queue needs or an
  // empty one allows.
  std::uint32_t bounded_pkts(const reinet_flow_stats& s, std::uint32_t cap_pkts, const GuardRules& rules) const {
    if (cap_pkts == 0) return 0;
    if (rules.bounds_steps) cap_pkts = bound_step_pkts(s, cap_pkts, rules.ceiling_pkts);
    if (!rules.aims_at_target) return cap_pkts;
    return std::max(cap_pkts, std::min(std::max(others_.least_pkts(), empty_.least_pkts()), rules.ceiling_pkts));
  }

  OthersQueue others_;
  EmptyQueue empty_;
  MinRttLook look_;
  bool would_cap_ = false;  // the latest decision, but for looks
};

// The guards of flows by slot.
class GuardBank {
 public:
  explicit GuardBank(const GuardRules& rules) : rules_(rules) {}

  Verdict judge(const reinet_flow_stats& s, std::uint32_t wanted_pkts, bool may_cap, bool aims_at_target) {
    return by_slot_.of(s).judge(s, wanted_pkts, may_cap, rules_for(aims_at_target));
  }
  void see(const reinet_flow_stats& s, bool aims_at_target) { by_slot_.of(s).see(s, rules_for(aims_at_target)); }

  void forget(std::size_t slot, std::uint64_t cookie) { by_slot_.forget(slot, cookie); }

 private:
  GuardRules rules_for(bool aims_at_target) const {
    GuardRules rules = rules_;
    rules.aims_at_target = aims_at_target;
    return rules;
  }

  GuardRules rules_;
  BySlot<Guard> by_slot_;
};

}  // namespace reinet

#endif
