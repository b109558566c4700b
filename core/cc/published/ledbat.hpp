// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_LEDBAT_HPP
#define REINET_LEDBAT_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/cc/congestion_control.hpp"
#include "core/cc/fractional_window.hpp"

namespace reinet {

// LEDBAT (RFC 6817): a background transfer that holds the queueing delay at 100 ms and makes room for others. Delay
// is the RTT's here, not one-way, so a queue of ACKs counts as well. It has no slow start, which the RFC permits (N1 in
// docs/congestion-controls.md). The RFC's names stand beside the constants.
class Ledbat : public ControlDefaults {
 public:
  static constexpr const char* kName = "ledbat";

  void on_start(Window& w, const Start& start) {
    window_.set(w, kFirstWindowPkts);
    w.ssthresh_pkts = 0;
    base_us_.fill(kNoDelay);
    current_us_.fill(kNoDelay);
    minute_us_ = start.now_us;
  }

  void on_sample(Window&, const AckEvent& ack) {
    if (ack.rtt_us < 0) return;
    const auto delay_us = static_cast<std::uint32_t>(ack.rtt_us);
    for (; ack.now_us - minute_us_ >= kMinuteUs; minute_us_ += kMinuteUs) {
      minute_ = (minute_ + 1) % kBaseHistory;
      base_us_[minute_] = kNoDelay;
    }
    base_us_[minute_] = std::min(base_us_[minute_], delay_us);
    current_us_[sample_++ % kCurrentFilter] = delay_us;
  }

  void on_delivered(Window& w, const AckEvent& ack) {
    const double pkts = window_.pkts(w);
    const double delay_us = static_cast<double>(least(current_us_)) - least(base_us_);
    const double off_target = (kTargetUs - delay_us) / kTargetUs;
    const double grown_pkts = pkts + kGain * off_target * ack.delivered_pkts / pkts;
    const double used_pkts = ack.prior_in_flight_pkts + kAllowedIncreasePkts;
    window_.set(w, std::max(std::min(grown_pkts, used_pkts), kMinWindowPkts));
  }

  std::uint32_t on_loss(const Window& w, LossCause) {
    return std::max(w.cwnd_pkts / 2, static_cast<std::uint32_t>(kMinWindowPkts));
  }

 private:
  static constexpr double kTargetUs = 100'000;         // TARGET: its upper bound
  static constexpr double kGain = 1.0;                 // GAIN: its upper bound, at which LEDBAT grows as fast as TCP
  static constexpr double kAllowedIncreasePkts = 1.0;  // ALLOWED_INCREASE, beyond what is in flight
  static constexpr double kFirstWindowPkts = 2.0;      // INIT_CWND
  static constexpr double kMinWindowPkts = 2.0;        // MIN_CWND
  static constexpr std::size_t kBaseHistory = 10;      // BASE_HISTORY: minutes until a longer base delay counts
  static constexpr std::size_t kCurrentFilter = 4;     // CURRENT_FILTER, samples: their least passes delayed ACKs over
  static constexpr Us kMinuteUs = 60'000'000;
  static constexpr std::uint32_t kNoDelay = std::numeric_limits<std::uint32_t>::max();

  template <std::size_t N>
  static std::uint32_t least(const std::array<std::uint32_t, N>& delays_us) {
    return *std::min_element(delays_us.begin(), delays_us.end());
  }

  FractionalWindow window_;
  std::array<std::uint32_t, kBaseHistory> base_us_{};  // least delay of each of the last minutes
  std::array<std::uint32_t, kCurrentFilter> current_us_{};
  std::size_t minute_ = 0;
  std::size_t sample_ = 0;
  Us minute_us_ = 0;
};

}  // namespace reinet

#endif
