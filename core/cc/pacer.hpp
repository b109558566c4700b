// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_PACER_HPP
#define REINET_PACER_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/clock.hpp"
#include "core/cc/congestion_control.hpp"

namespace reinet {

// The kernel's own pacing, without fq: bursts of a TSO packet each, the next one when the last would be through at the
// pacing rate. A burst that left late is worth an earlier next one, by at most half its own time.
class Pacer {
 public:
  // Returns whether a packet may leave now, as part of the present burst or the first of a new one of that size.
  bool may_send(Us now_us, std::uint32_t burst_pkts) {
    if (left_pkts_ > 0 && burst_us_ == now_us) return true;
    if (static_cast<double>(now_us) < next_us_) return false;
    left_pkts_ = burst_pkts;
    burst_us_ = now_us;
    late_us_ = static_cast<double>(now_us) - next_us_;
    next_us_ = static_cast<double>(now_us);
    return true;
  }

  void on_sent(std::uint32_t bytes, double bytes_per_s) {
    --left_pkts_;
    if (sent_pkts_ < kUnpacedPkts) {
      ++sent_pkts_;
      return;
    }
    const double takes_us = bytes * 1e6 / bytes_per_s;
    const double credit_us = std::min(takes_us / 2, late_us_);
    late_us_ -= credit_us;
    next_us_ += takes_us - credit_us;
  }

  Us wait_us(Us now_us) const { return next_us() > now_us + 1 ? next_us() - now_us : 0; }
  Us next_us() const { return static_cast<Us>(next_us_) + 1; }

  // A control over datagrams paces by itself, packet by packet; the kernel in bursts.
  template <Paced Control>
  static std::uint32_t burst_pkts(const Control& control, std::uint32_t mss_bytes) {
    if constexpr (Control::kAckedSingly) return control.min_burst_pkts();
    return burst_pkts(control.pacing_bytes_per_s(), mss_bytes, control.min_burst_pkts());
  }

  // sk_pacing_shift: a burst holds what 1/1024 s brings.
  static std::uint32_t burst_pkts(double bytes_per_s, std::uint32_t mss_bytes, std::uint32_t min_pkts) {
    const double bytes = std::min(bytes_per_s / 1024, kMaxBurstBytes);
    return std::max(static_cast<std::uint32_t>(bytes / mss_bytes), min_pkts);
  }

  // Returns what the kernel reports where the control does not pace; the factors, 2 in early slow start and 1.2 after
  // it, are its sysctls tcp_pacing_ss_ratio and tcp_pacing_ca_ratio.
  static double reported_bytes_per_s(const Window& window, std::uint32_t out_pkts, std::uint32_t mss_bytes,
                                     std::uint32_t srtt_us) {
    const double factor = window.cwnd_pkts < window.ssthresh_pkts / 2 ? 2.0 : 1.2;
    const double window_bytes = static_cast<double>(std::max(window.cwnd_pkts, out_pkts)) * mss_bytes;
    return factor * window_bytes * 1e6 / std::max(srtt_us, 1U);
  }

 private:
  static constexpr std::uint32_t kUnpacedPkts = 10;  // the initial window leaves at once
  static constexpr double kMaxBurstBytes = 65'000;   // of a TSO packet

  double next_us_ = 0;
  double late_us_ = 0;
  Us burst_us_ = 0;
  std::uint32_t left_pkts_ = 0;
  std::uint32_t sent_pkts_ = 0;
};

}  // namespace reinet

#endif
