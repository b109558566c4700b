// SPDX-License-Identifier: Apache-2.0
//
// What a look for a path's minimum RTT (min_rtt_look.hpp) says of a path that has become longer.
//
// Over a link whose rate varies no RTT is steady for long, so a flow can hardly be asked there whether its path became
// longer (path_rtt.hpp). But its queue comes and goes, and where none of its RTTs comes near the minimum any more, it
// is looked at: held to three quarters of what a path of the known length holds, it has no queue of its own. The
// least RTT until then, since the time of the look before, is the path's.
//
// A look at the least cap says nothing: four packets are a queue where the link is slow. Nor does one that was called
// off. Where others keep the queue full a look does not drain it, and their queue counts as part of the path; beside
// them a flow under a learned policy is left alone (others.hpp).
#ifndef REINET_LOOKED_AT_PATH_HPP
#define REINET_LOOKED_AT_PATH_HPP

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/flow_stats.h"
#include "core/guard/min_rtt_look.hpp"
#include "core/states/delay_ratio.hpp"
#include "core/states/feature.hpp"
#include "core/states/heads.hpp"

namespace reinet {

// What is known of one flow.
class LookedAtPath {
 public:
  // Takes a record with an RTT sample and the path's least RTT by what is known; returns it as a look has just shown
  // it, where none came near the known one, else 0.
  std::uint32_t update(const reinet_flow_stats& s, std::uint32_t known_us) {
    const std::uint64_t turn = s.time_ns / kLookEveryNs;
    const bool due = turn != turn_;
    turn_ = turn;
    if (due) earlier_least_us_ = std::exchange(least_us_, ~0U);
    const bool idle = s.flags & (REINET_FLAG_APP_LIMITED | REINET_FLAG_RESTARTED);
    if (idle || s.rtt_least_us < known_us + standing_queue_us(known_us)) {
      least_us_ = kNone;
      until_ns_ = 0;
      return kNone;
    }
    least_us_ = std::min(least_us_, s.rtt_least_us);
    if (due) {
      held_pkts_ = look_pkts(s, known_us);
      held_rounds_ = 0;
      until_ns_ = held_pkts_ > kMinCapPkts ? s.time_ns + kLookRounds * 1000 * s.rtt_mean_us : 0;
    }
    if (until_ns_ == 0) return kNone;
    if (s.time_ns < until_ns_) {
      if (s.cap_pkts != 0 && s.cap_pkts <= held_pkts_) held_rounds_ += rounds_of(s);
      return kNone;
    }
    until_ns_ = 0;
    return held_rounds_ >= kLeastHeldRounds ? std::min(earlier_least_us_, least_us_) : kNone;
  }

 private:
  // Of the two that a look lasts; the first record of the two may be of before.
  static constexpr double kLeastHeldRounds = 1;
  static constexpr std::uint32_t kNone = 0;

  std::uint64_t turn_ = 0;       // how many times for a look had passed at the latest record
  std::uint64_t until_ns_ = 0;   // when what the look under way shows is known, 0 = there is none
  std::uint32_t held_pkts_ = 0;  // what it lets the flow have in flight
  double held_rounds_ = 0;       // for how long the flow was held to that
  // The least RTT since the latest such time, and from the one before to it; kNone = it came near the known one.
  std::uint32_t least_us_ = kNone, earlier_least_us_ = kNone;
};

}  // namespace reinet

#endif
