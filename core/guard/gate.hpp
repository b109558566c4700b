// SPDX-License-Identifier: Apache-2.0
//
// Do no harm: whether a flow may be capped at all. A cap can only shorten a queue of the flow's own, so the gate stays
// closed until the flow has shown one, and closes again where that knowledge is old:
//
//   opens    when the smallest RTT sample over two round trips lies above the minimum RTT by HyStart's threshold. In
//            slow start the bursts of a round queue for a moment and drain again, and the first ACKs of the next round
//            see an empty queue; only a queue that never drains says that the link, not the window, is the limit. It is
//            also from then on that the delivery rate is the link's. Evidence of a flow that its application limits
//            does not count, unless it is in slow start and uses its window all the same: Linux enlarges a send buffer
//            only where it ran empty, and marks what is then in flight, so of a slow start it marks nearly all. Nor
//            does it open within the first second: a transfer that is over by then pays nothing, and its rate was
//            measured over so short a time that a cap after it would often be wrong.
//   closes   when the flow sends again after it was idle: it is a young flow once more.
//   never    opens below 1 ms of minimum RTT: loopback and neighbours in a data centre, where scheduling delays of the
//            hosts look like queues.
//
// And it is shut while a flow is asked whether its path has become longer (path_rtt.hpp).
#ifndef REINET_GATE_HPP
#define REINET_GATE_HPP

#include <algorithm>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/guard/path_rtt.hpp"
#include "core/states/delay_ratio.hpp"
#include "core/states/feature.hpp"

namespace reinet {

constexpr std::uint32_t kLeastPathRttUs = 1000;
// In the first round trip the queue fills; in the second the sender hears of what it lost, and its algorithm takes its
// ssthresh from the window that was too large. Under a cap it would take it from the cap.
constexpr std::uint64_t kStandingRtts = 2;
constexpr std::uint64_t kYoungNs = 1'000'000'000;  // a transfer that is over by then pays nothing

class Gate {
 public:
  // Takes a flow's record; returns whether it may be capped from now on.
  bool update(const reinet_flow_stats& s) {
    if (s.flags & REINET_FLAG_RESTARTED) *this = Gate{};
    const bool first = began_ns_ == kNever;
    if (first) began_ns_ = s.time_ns - std::min(s.period_ns, s.time_ns);
    if (open_ || !has_sample(s)) return open_;
    const bool stands = s.min_rtt_us >= kLeastPathRttUs && !waits_for_application(s, first) &&
                        s.rtt_least_us >= static_cast<std::uint64_t>(s.min_rtt_us) + standing_queue_us(s.min_rtt_us);
    if (!stands) {
      standing_since_ns_ = kNever;
    } else {
      standing_since_ns_ = std::min(standing_since_ns_, s.time_ns - std::min(s.period_ns, s.time_ns));
      open_ = s.time_ns - standing_since_ns_ >= kStandingRtts * s.srtt_us * 1000 && s.time_ns - began_ns_ >= kYoungNs;
    }
    return open_;
  }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  // A slow start that has more than half of its window in flight is limited by the window, as tcp_is_cwnd_limited of
  // include/net/tcp.h has it. A flow's first record is marked because its socket was empty before.
  static bool waits_for_application(const reinet_flow_stats& s, bool first) {
    const bool uses_window = !first && (s.flags & REINET_FLAG_SLOW_START) && 2 * s.inflight_pkts > s.cwnd_pkts;
    return (s.flags & REINET_FLAG_APP_LIMITED) && !uses_window;
  }

  std::uint64_t began_ns_ = kNever, standing_since_ns_ = kNever;
  bool open_ = false;
};

// Whether a flow may be capped, by the gate and by its path as it is now.
class PathGate {
 public:
  // Takes a flow's record, and writes the path's minimum RTT into it; returns whether the flow may be capped.
  bool update(reinet_flow_stats& s) {
    if (has_sample(s)) s.min_rtt_us = path_.update(s);
    return gate_.update(s) && !path_.opens(s);
  }
  // A target that is relative to the path is to be resolved by this, where it is not 0.
  std::uint32_t longer_us() const { return path_.longer_us(); }

 private:
  PathRtt path_;
  Gate gate_;
};

}  // namespace reinet

#endif
