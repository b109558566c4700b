// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ILLINOIS_HPP
#define REINET_ILLINOIS_HPP

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/cc/congestion_control.hpp"

namespace reinet {

// Illinois (Liu, Basar and Srikant, 2008): AIMD whose increase falls, alpha 10 to 0.3 packets per window, and whose
// decrease rises, beta 1/8 to 1/2, with the round's average queueing delay. Fixed point, constants and the curves'
// thresholds are those of the kernel's tcp_illinois.c, whose names stand beside them.
class Illinois : public ControlDefaults {
 public:
  static constexpr const char* kName = "illinois";

  void on_start(Window&, const Start&) { start_round(0); }

  void on_sample(Window&, const AckEvent& ack) {
    acked_pkts_ = ack.acked_pkts;
    if (ack.rtt_us < 0) return;
    const auto rtt_us = std::min(static_cast<std::uint32_t>(ack.rtt_us), kMaxRttUs);
    base_rtt_us_ = std::min(base_rtt_us_, rtt_us);
    max_rtt_us_ = std::max(max_rtt_us_, rtt_us);
    ++samples_;
    rtt_sum_us_ += rtt_us;
  }

  void on_delivered(Window& w, const AckEvent& ack) {
    if (static_cast<std::int32_t>(ack.una - round_end_) > 0) {
      update(w);
      start_round(ack.next);
    }
    if (!ack.window_limited) return;
    if (w.slow_start()) {
      slow_start(w, ack.delivered_pkts);
      return;
    }
    credit_pkts_ += acked_pkts_;
    acked_pkts_ = 1;
    const std::uint32_t grown = (credit_pkts_ * alpha_) / kAlphaUnit;
    if (grown < w.cwnd_pkts) return;
    w.cwnd_pkts += grown / w.cwnd_pkts;
    credit_pkts_ = 0;
  }

  std::uint32_t on_loss(const Window& w, LossCause) {
    return std::max(w.cwnd_pkts - w.cwnd_pkts * beta_ / kBetaUnit, 2U);
  }

  void on_state(SenderState state, const AckEvent& ack) {
    if (state != SenderState::kOpen) credit_pkts_ = 0;
    if (state != SenderState::kLoss) return;
    alpha_ = kAlphaBase;
    beta_ = kBetaBase;
    low_rounds_ = 0;
    was_above_ = false;
    start_round(ack.next);
  }

 private:
  static constexpr std::uint32_t kAlphaUnit = 128;                 // ALPHA_SCALE
  static constexpr std::uint32_t kAlphaMin = 3 * kAlphaUnit / 10;  // ALPHA_MIN: the paper's 0.3
  static constexpr std::uint32_t kAlphaMax = 10 * kAlphaUnit;      // ALPHA_MAX: the paper's 10
  static constexpr std::uint32_t kAlphaBase = kAlphaUnit;          // ALPHA_BASE: Reno's
  static constexpr std::uint32_t kBetaUnit = 64;                   // BETA_SCALE
  static constexpr std::uint32_t kBetaMin = kBetaUnit / 8;         // BETA_MIN: the paper's 1/8
  static constexpr std::uint32_t kBetaMax = kBetaUnit / 2;         // BETA_MAX: the paper's 1/2
  static constexpr std::uint32_t kBetaBase = kBetaUnit / 2;        // BETA_BASE: Reno's
  // RTT_MAX, 3.3 s: the product with alpha stays within 32 bits.
  static constexpr std::uint32_t kMaxRttUs = std::numeric_limits<std::uint32_t>::max() / kAlphaMax;
  static constexpr std::uint32_t kMinWindowPkts = 15;  // win_thresh: below it, Reno
  static constexpr std::uint32_t kLowRounds = 5;       // theta: with low delay, before alpha rises to its maximum

  void start_round(std::uint32_t next) {
    round_end_ = next;
    samples_ = 0;
    rtt_sum_us_ = 0;
  }

  void update(const Window& w) {
    if (w.cwnd_pkts < kMinWindowPkts) {
      alpha_ = kAlphaBase;
      beta_ = kBetaBase;
    } else if (samples_ > 0) {
      const std::uint32_t max_us = max_rtt_us_ - base_rtt_us_;
      const auto average_us = static_cast<std::uint32_t>(rtt_sum_us_ / samples_) - base_rtt_us_;
      alpha_ = alpha(average_us, max_us);
      beta_ = beta(average_us, max_us);
    }
  }

  // Returns kAlphaMax up to a hundredth of the largest delay, then hyperbolically down to kAlphaMin at the largest.
  std::uint32_t alpha(std::uint32_t average_us, std::uint32_t max_us) {
    const std::uint32_t low_us = max_us / 100;
    if (average_us <= low_us) {
      if (!was_above_) return kAlphaMax;
      if (++low_rounds_ < kLowRounds) return alpha_;
      low_rounds_ = 0;
      was_above_ = false;
      return kAlphaMax;
    }
    was_above_ = true;
    max_us -= low_us;
    average_us -= low_us;
    return max_us * kAlphaMax / (max_us + average_us * (kAlphaMax - kAlphaMin) / kAlphaMin);
  }

  // Returns kBetaMin up to a tenth of the largest delay, kBetaMax from eight tenths, a line between.
  static std::uint32_t beta(std::uint32_t average_us, std::uint32_t max_us) {
    const std::uint32_t low_us = max_us / 10;
    if (average_us <= low_us) return kBetaMin;
    const std::uint32_t high_us = 8 * max_us / 10;
    if (average_us >= high_us || high_us <= low_us) return kBetaMax;
    return (kBetaMin * high_us - kBetaMax * low_us + (kBetaMax - kBetaMin) * average_us) / (high_us - low_us);
  }

  std::uint32_t alpha_ = kAlphaMax;
  std::uint32_t beta_ = kBetaBase;
  std::uint32_t base_rtt_us_ = std::numeric_limits<std::int32_t>::max();
  std::uint32_t max_rtt_us_ = 0;
  std::uint64_t rtt_sum_us_ = 0;
  std::uint32_t samples_ = 0;
  std::uint32_t acked_pkts_ = 0;
  std::uint32_t credit_pkts_ = 0;
  std::uint32_t round_end_ = 0;
  std::uint32_t low_rounds_ = 0;
  bool was_above_ = false;
};

}  // namespace reinet

#endif
