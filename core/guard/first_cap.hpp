// SPDX-License-Identifier: Apache-2.0
//
// The first cap of a flow comes gradually, because the flow may be beside others.
//
// A cap that takes most of a flow's window at once takes its share of a queue of others in two or three round trips,
// long before such a queue is known (others.hpp): Cubic then needs seconds to grow again, and BBR, which remembers
// rates for ten round trips, gets nothing back. So the first cap leaves the flow what it had in flight without one, and
// from round trip to round trip less, down to kFirstCapShare of that.
//
// By then a flow that is alone has a shorter queue and the rate that it had. One beside others waits about as long, for
// less. That is less evidence than a stretch of many round trips, so it decides nothing: the queue is asked
// (others.hpp), and the question gives the flow its window back.
#ifndef REINET_FIRST_CAP_HPP
#define REINET_FIRST_CAP_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/guard/latest.hpp"

namespace reinet {

// What a cap leaves at the end, and when. Of plain's throughput, Cubics beside others (32 cells of rate, path and
// others, three seeds each) kept 0.80 with caps that took all at once, and 0.84, 0.86, 0.85 where they took 6, 8 and 12
// round trips; shares of 0.4 and 0.6 made it 0.86 and 0.85.
constexpr double kFirstCapRounds = 8;
constexpr double kFirstCapShare = 0.5;
// No cap takes longer to come: over a slow link with a deep queue that would be seconds. Beside others a bound of 2 s
// gained nothing, and one of 0.3 s lost most of the gain.
constexpr double kMostFirstCapNs = 0.7e9;
// From so many round trips without a cap one tells what a flow has in flight.
constexpr double kLeastPlainRounds = 3;
// Above this share of what the target leaves for queueing a flow waits long: a little more than models keep as a queue
// of its own, and more than half where one packet takes milliseconds.
constexpr double kLongWaitShare = 0.6;
// A flow is asked that got less than so much of what it had and waited about as long as before. One that waits for much
// longer, under less of a window, is on a link that became slower.
constexpr double kLostRateShare = 0.85;
constexpr double kLeastWaitTimes = 0.7;
constexpr double kMostWaitTimes = 1.5;

// What is known of one flow.
class FirstCap {
 public:
  // Takes a record with an RTT sample and the round trips that it covers; returns whether the queue is to be asked.
  bool update(const reinet_flow_stats& s, double passed_rounds) {
    if (!comes_ || s.flags & REINET_FLAG_APP_LIMITED) return false;
    if (s.cap_pkts == 0) {
      plain_.add(s, passed_rounds);
      return false;
    }
    if (plain_.rounds < kLeastPlainRounds) {
      end();
      return false;
    }
    capped_.add(s, passed_rounds);
    capped_ns_ += static_cast<double>(s.period_ns);
    const double passed_share = std::max(capped_.rounds / kFirstCapRounds, capped_ns_ / kMostFirstCapNs);
    least_pkts_ =
        static_cast<std::uint32_t>(std::ceil(held_pkts(s) * (1 - (1 - kFirstCapShare) * std::min(passed_share, 1.0))));
    const double room_us = static_cast<double>(s.target_us) - s.min_rtt_us;
    const bool drains = capped_.rounds > kFillRounds && capped_.wait_us < kLongWaitShare * room_us;
    if (!drains && passed_share < 1) return false;
    end();
    return !drains && capped_.bytes_per_ns() < kLostRateShare * plain_.bytes_per_ns() &&
           capped_.wait_us >= kLeastWaitTimes * plain_.wait_us && capped_.wait_us <= kMostWaitTimes * plain_.wait_us;
  }

  // Returns what a cap must leave the flow; 0 = nothing more than usual.
  std::uint32_t least_pkts() const { return least_pkts_; }

  // Returns means over the latest round trips under the cap that came.
  const Latest& capped() const { return capped_; }

 private:
  void end() {
    comes_ = false;
    least_pkts_ = 0;
  }

  // Returns what the flow had in flight without a cap, at the rate that it got: what a start overshot is not in it.
  double held_pkts(const reinet_flow_stats& s) const {
    return plain_.bytes_per_ns() * 1000 * (plain_.wait_us + s.min_rtt_us) / std::max(s.mss_bytes, 1U);
  }

  Latest plain_, capped_;
  double capped_ns_ = 0;
  std::uint32_t least_pkts_ = 0;
  bool comes_ = true;
};

}  // namespace reinet

#endif
