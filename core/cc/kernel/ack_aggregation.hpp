// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ACK_AGGREGATION_HPP
#define REINET_ACK_AGGREGATION_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/clock.hpp"

namespace reinet {

// How many more packets ACKs acknowledge at once than the bandwidth brings: the largest surplus of the last 5 to 10
// rounds, which BBR adds to its window so that the path is not idle between two bunches of ACKs.
class AckAggregation {
 public:
  void restart(Us now_us) {
    epoch_us_ = now_us;
    acked_pkts_ = 0;
  }

  // Packets are delivered, with that window. round_start: for the first time in a round. pkts_in(us): what the
  // bandwidth brings in that time.
  template <class PktsIn>
  void on_delivered(std::uint32_t pkts, Us delivered_us, std::uint32_t cwnd_pkts, bool round_start, PktsIn&& pkts_in) {
    if (round_start && ++rounds_ >= kRounds) {
      rounds_ = 0;
      index_ ^= 1;
      extra_pkts_[index_] = 0;
    }
    std::uint64_t expected_pkts = pkts_in(delivered_us - epoch_us_);
    if (acked_pkts_ <= expected_pkts || acked_pkts_ + pkts >= kMaxPkts) {
      restart(delivered_us);
      expected_pkts = 0;
    }
    acked_pkts_ += pkts;
    const std::uint64_t extra_pkts = std::min<std::uint64_t>(acked_pkts_ - expected_pkts, cwnd_pkts);
    extra_pkts_[index_] = std::max(extra_pkts_[index_], extra_pkts);
  }

  std::uint64_t extra_pkts() const { return std::max(extra_pkts_[0], extra_pkts_[1]); }

 private:
  static constexpr std::uint32_t kRounds = 5;
  static constexpr std::uint32_t kMaxPkts = 1U << 20;  // the kernel's count has 20 bits

  Us epoch_us_ = 0;
  std::uint64_t acked_pkts_ = 0;
  std::uint64_t extra_pkts_[2] = {0, 0};
  std::uint32_t index_ = 0;
  std::uint32_t rounds_ = 0;
};

}  // namespace reinet

#endif
