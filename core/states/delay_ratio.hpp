// SPDX-License-Identifier: Apache-2.0
// The queueing delay as a share of what the target allows, and its cost on the curve that features and reward share.
#ifndef REINET_DELAY_RATIO_HPP
#define REINET_DELAY_RATIO_HPP

#include <algorithm>
#include <cmath>

#include "core/flow_stats.h"

namespace reinet {

// A target below this multiple of the path's minimum RTT asks for a queue that cannot be kept: the window collapses.
constexpr double kLeastTargetPerRtt = 1.1;

// Returns the queueing delay that the target allows; the least room that a target may leave guards who divides by it.
inline double delay_room_us(const reinet_flow_stats& s) {
  const double min_rtt_us = s.min_rtt_us;
  return std::max({s.target_us - min_rtt_us, (kLeastTargetPerRtt - 1) * min_rtt_us, 1.0});
}

// Returns by how much the RTT of a round must exceed the minimum for a queue to be standing: HYSTART_DELAY_THRESH of
// net/ipv4/tcp_cubic.c, an eighth of the minimum RTT within 4 to 16 ms.
inline std::uint32_t standing_queue_us(std::uint32_t min_rtt_us) { return std::clamp(min_rtt_us / 8, 4000U, 16000U); }

// Returns 0 for no queue and 1 for the target.
inline double delay_ratio(const reinet_flow_stats& s) {
  return (s.rtt_mean_us - static_cast<double>(s.min_rtt_us)) / delay_room_us(s);
}

// How much more the first part of a queue costs than the last. At 1 (measured) a weight that keeps links with outages
// busy leaves fast steady links with 0.43 of Cubic's delay.
constexpr double kDelayCurve = 4.0;

// Returns 0 at an empty queue, 1 at the target.
inline double delay_cost(double ratio) {
  return std::log1p(kDelayCurve * std::max(ratio, 0.0)) / std::log1p(kDelayCurve);
}

}  // namespace reinet

#endif
