// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RTT_HPP
#define REINET_RTT_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/cc/clock.hpp"

namespace reinet {

// RFC 6298 with Linux's changes: a deviation that is the largest of the last round and decays only once per round, at
// least 200 ms of it in the timeout, and a fall of the RTT that does not raise it.
class RttEstimator {
 public:
  // una and next: the sender's, in segments; a round ends when what was next at its start has been acknowledged.
  // least_us: the same ACK's sample of the path where the smoothed RTT takes a longer one.
  void add(std::uint32_t rtt_us, std::uint32_t una, std::uint32_t next, std::uint32_t least_us = ~0U) {
    const double rtt = rtt_us;
    min_us_ = std::min({min_us_, rtt_us, least_us});
    if (srtt_ == 0.0) {
      srtt_ = std::max(rtt, 1.0);
      deviation_ = rtt / 2;
      variation_ = round_deviation_ = std::max(2 * rtt, kMinVariationUs);
      round_end_ = next;
      timeout_us_ = to_us(srtt_ + variation_);
      return;
    }
    const double error = rtt - srtt_;
    srtt_ = std::max(srtt_ + error / 8, 1.0);
    const double change = std::abs(error) - deviation_;
    deviation_ += error < 0 && change > 0 ? change / 32 : change / 4;
    round_deviation_ = std::max(round_deviation_, 4 * deviation_);
    variation_ = std::max(variation_, round_deviation_);
    if (static_cast<std::int32_t>(una - round_end_) > 0) {
      if (round_deviation_ < variation_) variation_ -= (variation_ - round_deviation_) / 4;
      round_end_ = next;
      round_deviation_ = kMinVariationUs;
    }
    timeout_us_ = to_us(srtt_ + variation_);
  }

  bool known() const { return srtt_ > 0.0; }
  std::uint32_t srtt_us() const { return static_cast<std::uint32_t>(srtt_); }
  // Of the flow's life, where the kernel's has a window of 300 s: simulated flows are seldom longer.
  std::uint32_t min_us() const { return min_us_; }
  Us timeout_us() const { return timeout_us_; }

  // A record's sample is a signed 32-bit number: an RTT of more than 36 minutes, as after an outage, counts as that.
  static constexpr Us kLongestUs = (Us{1} << 31) - 1;
  static std::uint32_t sample_us(Us sent_us, Us now_us) {
    return static_cast<std::uint32_t>(std::min(now_us - sent_us, kLongestUs));
  }

  static constexpr double kMinVariationUs = 200'000;  // Linux's TCP_RTO_MIN

 private:
  // By way of a signed integer, to which a processor can convert at once.
  static Us to_us(double us) { return static_cast<Us>(static_cast<std::int64_t>(us)); }

  double srtt_ = 0.0;
  double deviation_ = 0.0;        // smoothed |error|
  double variation_ = 0.0;        // what the timeout adds to srtt: four deviations
  double round_deviation_ = 0.0;  // the largest of this round, four deviations too
  Us timeout_us_ = 1'000'000;     // RFC 6298's before the first sample
  std::uint32_t min_us_ = ~0U;
  std::uint32_t round_end_ = 0;
};

}  // namespace reinet

#endif
