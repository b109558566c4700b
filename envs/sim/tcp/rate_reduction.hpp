// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RATE_REDUCTION_HPP
#define REINET_RATE_REDUCTION_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"

namespace reinet {

// Proportional rate reduction (RFC 6937, tcp_cwnd_reduction): in recovery the window falls to ssthresh over one round
// trip, in step with what is delivered, and slow-starts back up to it if losses took it below.
class RateReduction {
 public:
  void begin(std::uint32_t prior_cwnd_pkts) {
    prior_cwnd_pkts_ = prior_cwnd_pkts;
    delivered_pkts_ = sent_pkts_ = 0;
  }
  void on_sent() { ++sent_pkts_; }

  // progress: the ACK advanced and showed no further loss.
  [[gnu::noinline]] void reduce(Window& w, std::uint32_t in_flight_pkts, std::uint32_t delivered_pkts, bool progress) {
    if (delivered_pkts == 0) return;
    delivered_pkts_ += delivered_pkts;
    const std::int64_t in_flight = in_flight_pkts;
    const std::int64_t ssthresh = w.ssthresh_pkts;
    std::int64_t allowed;
    if (in_flight > ssthresh) {
      const std::int64_t share = (ssthresh * delivered_pkts_ + prior_cwnd_pkts_ - 1) / prior_cwnd_pkts_;
      allowed = share - sent_pkts_;
    } else {
      const std::int64_t owed = std::max<std::int64_t>(delivered_pkts_ - sent_pkts_, delivered_pkts);
      allowed = std::min(owed + (progress ? 1 : 0), ssthresh - in_flight);
    }
    allowed = std::max<std::int64_t>(allowed, sent_pkts_ > 0 ? 0 : 1);  // the first retransmission always goes out
    w.cwnd_pkts = static_cast<std::uint32_t>(in_flight + allowed);
  }

 private:
  std::uint32_t prior_cwnd_pkts_ = 1;
  std::int64_t delivered_pkts_ = 0;  // both since the recovery began
  std::int64_t sent_pkts_ = 0;
};

}  // namespace reinet

#endif
