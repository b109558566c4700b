// SPDX-License-Identifier: Apache-2.0
//
// The flow whose queue is empty: its cap shortens nothing, so it rises until there is a queue.
//
// A cap that holds a flow below what its path carries takes throughput for no delay, and nothing ends it by itself: the
// next cap is computed from the rate under this one. Over paths of 100 ms and more, where a decision sees less than a
// round trip, a learned policy may stay there. The evidence is plain, though: the flow's RTT stands at the path's
// minimum, as long as the cap binds.
//
// So after kEmptyRounds round trips of that, each further round trip lets the flow have more than its cap, until its
// RTT shows a queue: kRise times the cap at first, and in each round trip kRise times as much as in the one before, for
// a link that has become several times as fast is not to wait. From then on that is what it may have at least, and less
// by as much as the queue is longer than an eighth of the path. A queue that is much longer says that the link has
// become another one, unless the cap has just risen.
//
//     usual --- empty for long ---> least = more than the cap, each round trip --- a queue ---> least x path / RTT,
//       ^                                                                                       each round trip
//       +---------- a long queue, no cap, idle -------------------------------------------------------+
#ifndef REINET_EMPTY_QUEUE_HPP
#define REINET_EMPTY_QUEUE_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/states/feature.hpp"

namespace reinet {

// Over four seeds the ratios of docs/models.md over a path of 100 ms were 0.86 / 0.90 with this rule and without its
// growing steps. After three round trips they were 0.87 / 0.91, and after two, with steps as large as the target allows
// from the first one on, 0.87 / 0.92 in one run.
constexpr double kEmptyRounds = 5;
// A queue below this share of the path is none: half of HyStart's threshold, and no more than half of its largest one.
// On short paths that is below what the links' clocks show, and no cap rises.
constexpr double kEmptyShare = 1.0 / 16;
constexpr double kMostEmptyUs = 8000;
// What is sent shows a round trip later, so by then the cap has risen twice: at first by no more than what is a queue,
// and never by more than what the target leaves.
constexpr double kRise = 1.04;
constexpr int kOwnRounds = 2;        // so long the queue is the cap's that rose
constexpr double kFullTimes = 2;     // a queue of so many times the above is one
constexpr double kChangedTimes = 4;  // and of so many is another link's
constexpr double kHoldsBack = 0.7;   // a cap that is used less holds nobody back

// What is known of one flow.
class EmptyQueue {
 public:
  // Takes a record with an RTT sample.
  void update(const reinet_flow_stats& s) {
    if (s.cap_pkts == 0 || s.flags & REINET_FLAG_RESTARTED) *this = EmptyQueue{};
    if (s.cap_pkts == 0) return;
    const double passed_rounds = rounds_of(s), least_us = s.min_rtt_us;
    const double empty_us = std::min(kEmptyShare * least_us, kMostEmptyUs);
    if (s.flags & REINET_FLAG_APP_LIMITED || s.rtt_mean_us > least_us + empty_us ||
        flew_pkts(s) < kHoldsBack * s.cap_pkts) {
      rounds_ = 0;
    } else {
      rounds_ += passed_rounds;
    }
    turn_rounds_ += passed_rounds;
    turn_rtt_us_ += passed_rounds * s.rtt_mean_us;
    if (turn_rounds_ < 1) return;
    const double rtt_us = turn_rtt_us_ / turn_rounds_;
    turn_rounds_ = turn_rtt_us_ = 0;
    const bool rose = own_rounds_ > 0;
    if (rose) --own_rounds_;
    if (rtt_us > least_us + kFullTimes * empty_us) {
      const bool changed = !rose && rtt_us > least_us + kChangedTimes * empty_us;
      least_pkts_ *= changed ? 0 : (least_us + empty_us) / rtt_us;
      rise_ = 1;
    } else if (rounds_ < kEmptyRounds) {
      rise_ = 1;
    } else {
      rise_ = std::min(kRise * rise_, std::sqrt(s.target_us / least_us));
      least_pkts_ = std::max(least_pkts_, rise_ * s.cap_pkts);
      own_rounds_ = kOwnRounds;
    }
  }

  // Returns what a cap must leave the flow; 0 = nothing more than usual.
  std::uint32_t least_pkts() const { return static_cast<std::uint32_t>(std::ceil(least_pkts_)); }

 private:
  double rounds_ = 0;  // for how many the queue has been empty under a cap that binds
  double turn_rounds_ = 0, turn_rtt_us_ = 0;
  double least_pkts_ = 0;
  double rise_ = 1;     // by how much the cap rose in the latest round trip
  int own_rounds_ = 0;  // for how long a queue is still of that
};

}  // namespace reinet

#endif
