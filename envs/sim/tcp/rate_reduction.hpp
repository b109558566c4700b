// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RATE_REDUCTION_HPP
#define REINET_RATE_REDUCTION_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"

namespace reinet {

// Proportional rate reduction (RFC 6937): the window falls to ssthresh over one round trip, in step with what is
// delivered, and slow-starts back up to it if losses took it below.
class RateReduction {
 public:
  void start(std::uint32_t cwnd_pkts) {
    prior_cwnd_pkts_ = cwnd_pkts;
    delivered_pkts_ = sent_pkts_ = 0;
  }

  // A segment went out, new or again.
  void on_sent() { ++sent_pkts_; }

  // progress: the ACK advanced and showed no further loss.
  [[gnu::noinline]] void on_delivered(Window& window, std::int64_t in_flight_pkts, std::uint32_t pkts, bool progress) {
    if (pkts == 0) return;
    delivered_pkts_ += pkts;
    const std::int64_t ssthresh_pkts = window.ssthresh_pkts;
    std::int64_t allowed_pkts;
    if (in_flight_pkts > ssthresh_pkts) {
      const std::int64_t share_pkts = (ssthresh_pkts * delivered_pkts_ + prior_cwnd_pkts_ - 1) / prior_cwnd_pkts_;
      allowed_pkts = share_pkts - sent_pkts_;
    } else {
      const std::int64_t owed_pkts = std::max<std::int64_t>(delivered_pkts_ - sent_pkts_, pkts);
      allowed_pkts = std::min(owed_pkts + (progress ? 1 : 0), ssthresh_pkts - in_flight_pkts);
    }
    allowed_pkts =
        std::max<std::int64_t>(allowed_pkts, sent_pkts_ > 0 ? 0 : 1);  // the first retransmission always goes
    window.cwnd_pkts = static_cast<std::uint32_t>(in_flight_pkts + allowed_pkts);
  }

 private:
  std::uint32_t prior_cwnd_pkts_ = 0;
  std::int64_t delivered_pkts_ = 0;  // since its start; so the next
  std::int64_t sent_pkts_ = 0;
};

}  // namespace reinet

#endif
