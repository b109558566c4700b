// SPDX-License-Identifier: Apache-2.0
//
// CUBIC (RFC 9438) and HyStart (Ha and Rhee, 2011) with the choices of the Linux kernel (net/ipv4/tcp_cubic.c), whose
// names stand beside the constants: C = 0.4, beta = 717/1024, fast convergence, the Reno-friendly region, both of
// HyStart's triggers, and an ACK counter for fractions of a packet.
#ifndef REINET_CUBIC_HPP
#define REINET_CUBIC_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/cc/congestion_control.hpp"

namespace reinet {

class Cubic : public ControlDefaults {
 public:
  static constexpr const char* kName = "cubic";

  void on_sample(Window& w, const AckEvent& ack) {
    // Samples just after a reduction still hold the queue that caused it.
    if (ack.rtt_us < 0 || (epoch_start_us_ && ack.now_us - epoch_start_us_ < kSettleUs)) return;
    const auto rtt_us = static_cast<std::uint32_t>(std::max(ack.rtt_us, 1));
    if (min_rtt_us_ == 0 || rtt_us < min_rtt_us_) min_rtt_us_ = rtt_us;
    if (!hystart_found_ && w.slow_start()) hystart(w, ack.now_us, rtt_us, ack.una, ack.next);
  }

  void on_delivered(Window& w, const AckEvent& ack) {
    if (!ack.window_limited) return;
    const std::uint32_t pkts = w.slow_start() ? slow_start(w, ack.delivered_pkts) : ack.delivered_pkts;
    if (pkts > 0) increase_.add(w, update(w.cwnd_pkts, ack.now_us, pkts), pkts);
  }

  std::uint32_t on_loss(const Window& w, LossCause) {
    epoch_start_us_ = 0;
    // Fast convergence: a flow that has not come back to its last maximum makes room for others.
    const bool shrinking = w.cwnd_pkts < last_max_pkts_;
    last_max_pkts_ = shrinking ? w.cwnd_pkts * (kBetaScale + kBeta) / (2 * kBetaScale) : w.cwnd_pkts;
    return std::max(w.cwnd_pkts * kBeta / kBetaScale, 2U);
  }

  void on_state(SenderState state, const AckEvent&) {
    if (state == SenderState::kRecovery) increase_.reset();
    if (state == SenderState::kLoss) *this = Cubic{};  // what was known of the path is void
  }

  void on_restart(Window&, const Restart& restart) {
    // An idle time is none in which the window may grow.
    if (epoch_start_us_) epoch_start_us_ = std::min(epoch_start_us_ + restart.idle_us, restart.now_us);
  }

 private:
  // beta, BICTCP_BETA_SCALE: 0.7 of the window stays after a loss (RFC 9438 section 4.6).
  static constexpr std::uint32_t kBeta = 717, kBetaScale = 1024;
  // cube_rtt_scale: bic_scale = 41 over an RTT of 100 ms; packets/s^3, the RFC's C = 0.4.
  static constexpr double kC = 410.0 / 1024.0;
  // beta_scale, 8 (1 + beta) / (3 (1 - beta)): ACKs, in eighths of a window, that let Reno grow by one at this beta.
  static constexpr std::uint32_t kRenoScale = 15;
  // HZ: delay samples are passed over for a second after fast recovery.
  static constexpr Us kSettleUs = 1'000'000;
  // HZ / 32: the window's growth is computed anew only so often unless the window changed.
  static constexpr Us kUpdateUs = 31'250;
  // hystart_low_window: HyStart looks from this window on.
  static constexpr std::uint32_t kHystartLowWindowPkts = 16;
  // HYSTART_MIN_SAMPLES: the least of so many RTTs speaks for a round.
  static constexpr std::uint32_t kHystartSamples = 8;
  // hystart_ack_delta_us: ACKs further apart are no train.
  static constexpr Us kHystartTrainGapUs = 2000;
  // hystart_ack_delay's bound: the allowance for bursts of TSO packets, at any rate below 2 Gbit/s.
  static constexpr Us kHystartTsoUs = 1000;

  // Packets to be delivered per increase of the window by one.
  std::uint32_t update(std::uint32_t cwnd_pkts, Us now_us, std::uint32_t pkts) {
    acked_pkts_ += pkts;
    if (last_cwnd_pkts_ == cwnd_pkts && now_us - last_update_us_ <= kUpdateUs) return pkts_per_increase_;
    // Within a tick of the kernel's clock only the Reno estimate moves.
    if (!epoch_start_us_ || now_us / kJiffyUs != last_update_us_ / kJiffyUs) cubic(cwnd_pkts, now_us, pkts);
    reno_friendly(cwnd_pkts);
    pkts_per_increase_ = std::max(pkts_per_increase_, 2U);  // at most half a window more per round
    return pkts_per_increase_;
  }

  void cubic(std::uint32_t cwnd_pkts, Us now_us, std::uint32_t pkts) {
    last_cwnd_pkts_ = cwnd_pkts;
    last_update_us_ = now_us;
    if (!epoch_start_us_) {
      epoch_start_us_ = now_us;
      acked_pkts_ = pkts;
      reno_cwnd_pkts_ = cwnd_pkts;
      k_s_ = last_max_pkts_ > cwnd_pkts ? std::cbrt((last_max_pkts_ - cwnd_pkts) / kC) : 0.0;
      origin_pkts_ = std::max(last_max_pkts_, cwnd_pkts);
    }
    // The window is set for one minimum RTT ahead.
    const double from_k_s = static_cast<double>(now_us - epoch_start_us_ + min_rtt_us_) * 1e-6 - k_s_;
    const double rise_pkts = std::trunc(kC * from_k_s * from_k_s * from_k_s);
    const double above_pkts = static_cast<double>(origin_pkts_) + rise_pkts - cwnd_pkts;
    pkts_per_increase_ = above_pkts >= 1 ? static_cast<std::uint32_t>(cwnd_pkts / above_pkts) : 100 * cwnd_pkts;
    if (last_max_pkts_ == 0) pkts_per_increase_ = std::min(pkts_per_increase_, 20U);  // no loss yet: 5 % a round
  }

  void reno_friendly(std::uint32_t cwnd_pkts) {
    const std::uint32_t acked_per_increase = std::max(cwnd_pkts * kRenoScale / 8, 1U);
    reno_cwnd_pkts_ += acked_pkts_ / acked_per_increase;
    acked_pkts_ %= acked_per_increase;
    if (reno_cwnd_pkts_ > cwnd_pkts)
      pkts_per_increase_ = std::min(pkts_per_increase_, cwnd_pkts / (reno_cwnd_pkts_ - cwnd_pkts));
  }

  void hystart(Window& w, Us now_us, std::uint32_t rtt_us, std::uint32_t una, std::uint32_t next) {
    if (static_cast<std::int32_t>(una - round_end_) > 0) {
      round_start_us_ = last_ack_us_ = now_us;
      round_end_ = next;
      round_rtt_us_ = std::numeric_limits<std::uint32_t>::max();
      round_samples_ = 0;
    }
    if (w.cwnd_pkts < kHystartLowWindowPkts) return;
    // A train of closely spaced ACKs that lasts half the minimum RTT: the pipe is full.
    if (now_us - last_ack_us_ <= kHystartTrainGapUs) {
      last_ack_us_ = now_us;
      if (now_us - round_start_us_ > (min_rtt_us_ + kHystartTsoUs) / 2) leave_slow_start(w);
    }
    // The round's least RTT stands an eighth above the minimum, 4 to 16 ms (HYSTART_DELAY_THRESH): a queue is building.
    round_rtt_us_ = std::min(round_rtt_us_, rtt_us);
    if (round_samples_ < kHystartSamples)
      ++round_samples_;
    else if (round_rtt_us_ > min_rtt_us_ + std::clamp(min_rtt_us_ / 8, 4000U, 16000U))
      leave_slow_start(w);
  }

  void leave_slow_start(Window& w) {
    hystart_found_ = true;
    w.ssthresh_pkts = w.cwnd_pkts;
  }

  AdditiveIncrease increase_;
  std::uint32_t pkts_per_increase_ = 0;
  std::uint32_t last_max_pkts_ = 0;
  std::uint32_t last_cwnd_pkts_ = 0;
  std::uint32_t origin_pkts_ = 0;
  std::uint32_t acked_pkts_ = 0;
  std::uint32_t reno_cwnd_pkts_ = 0;
  std::uint32_t min_rtt_us_ = 0;
  Us last_update_us_ = 0;
  Us epoch_start_us_ = 0;  // 0 = no epoch
  double k_s_ = 0.0;

  bool hystart_found_ = false;
  std::uint32_t round_end_ = 0;
  std::uint32_t round_rtt_us_ = 0;
  std::uint32_t round_samples_ = 0;
  Us round_start_us_ = 0;
  Us last_ack_us_ = 0;
};

}  // namespace reinet

#endif
