// SPDX-License-Identifier: Apache-2.0
//
// BBR version 1 (Cardwell et al., 2016) with the choices of the Linux kernel (net/ipv4/tcp_bbr.c), in its fixed point.
//
// Two filters model the path: bandwidth, the maximum of ten round trips' delivery rates, and min RTT, the minimum of
// ten seconds. The flow is paced at a gain times the bandwidth, with a window of a gain times their product.
//
//   kStartup --bandwidth stands still for 3 rounds--> kDrain --in flight <= BDP--> kProbeBw
//       ^                                                                          |  ^
//       +------- pipe not yet full ------- kProbeRtt <----- min RTT 10 s old ------+--+
#ifndef REINET_BBR_HPP
#define REINET_BBR_HPP

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/cc/congestion_control.hpp"
#include "core/cc/kernel/bbr_policer.hpp"
#include "core/cc/random.hpp"
#include "core/cc/windowed_max.hpp"

namespace reinet {

class Bbr : public ControlDefaults {
 public:
  static constexpr const char* kName = "bbr";

  void on_start(Window& w, const Start& start) {
    mss_bytes_ = start.mss_bytes;
    random_ = SplitMix64(start.seed);
    min_rtt_us_ = start.rtt_us;
    min_rtt_at_us_ = start.now_us;
    epoch_us_ = cycle_us_ = start.now_us;
    const std::uint64_t bw = (std::uint64_t{w.cwnd_pkts} << kBbrBwShift) / std::max(start.rtt_us, 1U);
    pacing_bytes_per_s_ = rate_bytes_per_s(static_cast<std::uint32_t>(bw), kHighGain);
  }

  void on_ack(Window& w, const AckEvent& ack, const RateSample& rate) {
    update_bandwidth(ack, rate);
    update_aggregation(w, ack, rate);
    update_cycle(ack, rate);
    check_full_pipe(rate);
    check_drain(w, ack);
    update_min_rtt(w, ack, rate);
    update_gains();
    set_pacing_rate(bandwidth(), pacing_gain_);
    set_window(w, ack);
  }

  // Losses do not move ssthresh; what the window was is kept for when recovery is over.
  std::uint32_t on_loss(const Window& w, LossCause) {
    save_window(w);
    return w.ssthresh_pkts;
  }

  void on_state(SenderState state, const AckEvent& ack) {
    if (state != SenderState::kLoss) return;
    last_state_ = SenderState::kLoss;
    full_bw_ = 0;
    round_start_ = true;
    RateSample none;
    none.delivered_us = delivered_us_;
    watch_policer(ack, none, 1);
  }

  std::uint32_t on_undo(const Window& w, std::uint32_t) {
    full_bw_ = full_bw_rounds_ = 0;
    policer_.reset();
    return w.cwnd_pkts;  // on_ack restores it
  }

  void on_restart(Window& w, const Restart& restart) {
    if (!restart.app_limited) return;
    idle_restart_ = true;
    epoch_us_ = restart.now_us;
    epoch_acked_pkts_ = 0;
    if (mode_ == Mode::kProbeBw)
      set_pacing_rate(bandwidth(), kUnit);
    else if (mode_ == Mode::kProbeRtt)
      check_probe_rtt_done(w, restart.now_us);
  }

  double pacing_bytes_per_s() const { return pacing_bytes_per_s_; }
  bool full_pipe() const { return full_pipe_; }  // the start-up is over
  std::uint32_t min_burst_pkts() const { return pacing_bytes_per_s_ < kMinTsoBytesPerS ? 1 : 2; }

 private:
  enum class Mode { kStartup, kDrain, kProbeBw, kProbeRtt };

  // Each comment begins with the kernel's name; gains are in BBR_UNITs.
  static constexpr std::uint32_t kUnit = 256;
  static constexpr std::uint32_t kHighGain = kUnit * 2885 / 1000 + 1;  // bbr_high_gain: 2/ln 2 doubles the rate a round
  static constexpr std::uint32_t kDrainGain = kUnit * 1000 / 2885;  // bbr_drain_gain: drains in a round what that made
  static constexpr std::uint32_t kWindowGain = 2 * kUnit;           // bbr_cwnd_gain: room for delayed, aggregated ACKs
  static constexpr std::uint32_t kCycleLength = 8;                  // CYCLE_LEN
  // bbr_pacing_gain: probes for more bandwidth, drains the queue that this made, then cruises for six minimum RTTs.
  static constexpr std::uint32_t kCycleGains[kCycleLength] = {kUnit * 5 / 4, kUnit * 3 / 4, kUnit, kUnit,
                                                              kUnit,         kUnit,         kUnit, kUnit};
  static constexpr std::uint32_t kRandomPhases = 7;             // bbr_cycle_rand: any but the one that drains
  static constexpr std::uint32_t kBwRounds = kCycleLength + 2;  // bbr_bw_rtts: a cycle, which probes once, and more
  static constexpr Us kMinRttWindowUs = 10'000'000;             // bbr_min_rtt_win_sec
  static constexpr Us kProbeRttUs = 200'000;                    // bbr_probe_rtt_mode_ms: 2 % of those ten seconds
  static constexpr std::uint32_t kMinWindowPkts = 4;            // bbr_cwnd_min_target: delayed ACKs still come
  static constexpr std::uint32_t kFullBwRounds = 3;             // bbr_full_bw_cnt: rounds without a quarter more
  static constexpr double kPacingMargin = 0.99;                 // bbr_pacing_margin_percent: so that no queue stays
  static constexpr double kMinTsoBytesPerS = 1'200'000 / 8.0;   // bbr_min_tso_rate: below it packets leave singly
  // Aggregated ACKs: the largest surplus over the bandwidth in 5 to 10 rounds is added to the window, 100 ms at most.
  static constexpr std::uint32_t kAggregationRounds = 5;          // bbr_extra_acked_win_rtts, of each of two windows
  static constexpr std::uint32_t kAggregationMaxPkts = 1U << 20;  // bbr_ack_epoch_acked_reset_thresh: its field's size
  static constexpr Us kAggregationMaxUs = 100'000;                // bbr_extra_acked_max_us

  // ---- the model

  std::uint32_t max_bandwidth() const { return max_bw_.value(); }
  std::uint32_t bandwidth() const { return policer_.found() ? policer_.bandwidth() : max_bandwidth(); }

  double rate_bytes_per_s(std::uint32_t bw, std::uint32_t gain) const {
    const std::uint64_t scaled = std::uint64_t{bw} * mss_bytes_ * gain / kUnit;
    return static_cast<double>(scaled) * 1e6 * kPacingMargin / (1U << kBbrBwShift);
  }

  void update_bandwidth(const AckEvent& ack, const RateSample& rate) {
    round_start_ = false;
    delivered_us_ = rate.delivered_us;
    if (!rate.valid()) return;
    if (rate.prior_delivered_pkts >= round_end_delivered_pkts_) {
      round_end_delivered_pkts_ = ack.delivered_total_pkts;
      ++rounds_;
      round_start_ = true;
      conserve_packets_ = false;
    }
    watch_policer(ack, rate, ack.lost_pkts);
    const std::uint64_t bw = (std::uint64_t{rate.delivered_pkts} << kBbrBwShift) / rate.interval_us;
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    const auto bw32 = static_cast<std::uint32_t>(std::min(bw, kMost));
    // An application-limited sample is a lower bound.
    if (!rate.app_limited || bw32 >= max_bandwidth()) max_bw_.add(kBwRounds, rounds_, bw32);
  }

  void update_aggregation(const Window& w, const AckEvent& ack, const RateSample& rate) {
    if (ack.delivered_pkts == 0 || !rate.valid()) return;
    if (round_start_ && ++extra_acked_rounds_ >= kAggregationRounds) {
      extra_acked_rounds_ = 0;
      extra_acked_index_ ^= 1;
      extra_acked_pkts_[extra_acked_index_] = 0;
    }
    std::uint64_t expected_pkts = pkts_in(bandwidth(), delivered_us_ - epoch_us_);
    if (epoch_acked_pkts_ <= expected_pkts || epoch_acked_pkts_ + ack.delivered_pkts >= kAggregationMaxPkts) {
      epoch_acked_pkts_ = 0;
      epoch_us_ = delivered_us_;
      expected_pkts = 0;
    }
    epoch_acked_pkts_ += ack.delivered_pkts;
    const std::uint64_t extra_pkts = std::min<std::uint64_t>(epoch_acked_pkts_ - expected_pkts, w.cwnd_pkts);
    extra_acked_pkts_[extra_acked_index_] = std::max(extra_acked_pkts_[extra_acked_index_], extra_pkts);
  }

  void update_min_rtt(Window& w, const AckEvent& ack, const RateSample& rate) {
    const bool expired = ack.now_us > min_rtt_at_us_ + kMinRttWindowUs;
    if (ack.rtt_us >= 0 && (static_cast<std::uint32_t>(ack.rtt_us) < min_rtt_us_ || expired)) {
      min_rtt_us_ = static_cast<std::uint32_t>(ack.rtt_us);
      min_rtt_at_us_ = ack.now_us;
    }
    if (expired && !idle_restart_ && mode_ != Mode::kProbeRtt) {
      mode_ = Mode::kProbeRtt;
      save_window(w);
      probe_rtt_done_us_ = 0;
    }
    if (mode_ == Mode::kProbeRtt) probe_rtt(w, ack);
    if (rate.valid()) idle_restart_ = false;
  }

  // With four packets in flight for 200 ms and a round, whichever is longer, any queue of our own is gone.
  void probe_rtt(Window& w, const AckEvent& ack) {
    // Its rates say nothing of the path.
    w.app_limited_until_pkts = std::max<std::uint64_t>(ack.delivered_total_pkts + ack.in_flight_pkts, 1);
    if (probe_rtt_done_us_ == 0) {
      if (ack.in_flight_pkts > kMinWindowPkts) return;
      probe_rtt_done_us_ = ack.now_us + kProbeRttUs;
      probe_rtt_round_done_ = false;
      round_end_delivered_pkts_ = ack.delivered_total_pkts;
      return;
    }
    if (round_start_) probe_rtt_round_done_ = true;
    if (probe_rtt_round_done_) check_probe_rtt_done(w, ack.now_us);
  }

  void check_probe_rtt_done(Window& w, Us now_us) {
    if (probe_rtt_done_us_ == 0 || now_us <= probe_rtt_done_us_) return;
    min_rtt_at_us_ = now_us;
    w.cwnd_pkts = std::max(w.cwnd_pkts, saved_cwnd_pkts_);
    if (full_pipe_)
      enter_probe_bw();
    else
      mode_ = Mode::kStartup;
  }

  // ---- policers

  void watch_policer(const AckEvent& ack, const RateSample& rate, std::uint32_t lost_pkts) {
    if (policer_.found()) {
      if (mode_ == Mode::kProbeBw && round_start_ && policer_.is_outdated_after_round()) enter_probe_bw();
      return;
    }
    const PolicerDetector::Totals totals{delivered_us_, ack.delivered_total_pkts, ack.lost_total_pkts};
    const auto bytes_per_s = [this](std::uint32_t bw) { return rate_bytes_per_s(bw, kUnit); };
    if (policer_.sample(totals, lost_pkts, round_start_, rate.app_limited, bytes_per_s)) pacing_gain_ = kUnit;
  }

  // ---- the state machine

  void check_full_pipe(const RateSample& rate) {
    if (full_pipe_ || !round_start_ || rate.app_limited) return;
    if (max_bandwidth() >= std::uint64_t{full_bw_} * 5 / 4) {
      full_bw_ = max_bandwidth();
      full_bw_rounds_ = 0;
      return;
    }
    full_pipe_ = ++full_bw_rounds_ >= kFullBwRounds;
  }

  void check_drain(Window& w, const AckEvent& ack) {
    if (mode_ == Mode::kStartup && full_pipe_) {
      mode_ = Mode::kDrain;
      w.ssthresh_pkts = window_for(max_bandwidth(), kUnit);
    }
    const std::uint32_t in_net = in_net_pkts(ack.in_flight_pkts, ack.pace_wait_us);
    if (mode_ == Mode::kDrain && in_net <= window_for(max_bandwidth(), kUnit)) enter_probe_bw();
  }

  void enter_probe_bw() {
    mode_ = Mode::kProbeBw;
    cycle_index_ = kCycleLength - 1 - static_cast<std::uint32_t>(random_.next() % kRandomPhases);
    advance_cycle();
  }

  void advance_cycle() {
    cycle_index_ = (cycle_index_ + 1) % kCycleLength;
    cycle_us_ = delivered_us_;
  }

  void update_cycle(const AckEvent& ack, const RateSample& rate) {
    if (mode_ == Mode::kProbeBw && phase_is_over(ack, rate)) advance_cycle();
  }

  // Each phase lasts a min RTT; the one that probes also until it has filled what it aims at or lost something, the one
  // that drains only until it has drained.
  bool phase_is_over(const AckEvent& ack, const RateSample& rate) const {
    const bool full_length = rate.delivered_us - cycle_us_ > min_rtt_us_;
    if (pacing_gain_ == kUnit) return full_length;
    const std::uint32_t in_net = in_net_pkts(ack.prior_in_flight_pkts, ack.pace_wait_us);
    if (pacing_gain_ > kUnit)
      return full_length && (ack.lost_pkts > 0 || in_net >= window_for(max_bandwidth(), pacing_gain_));
    return full_length || in_net <= window_for(max_bandwidth(), kUnit);
  }

  void update_gains() {
    switch (mode_) {
      case Mode::kStartup:
        pacing_gain_ = window_gain_ = kHighGain;
        break;
      case Mode::kDrain:
        pacing_gain_ = kDrainGain;
        window_gain_ = kHighGain;
        break;
      case Mode::kProbeBw:
        pacing_gain_ = policer_.found() ? kUnit : kCycleGains[cycle_index_];
        window_gain_ = kWindowGain;
        break;
      case Mode::kProbeRtt:
        pacing_gain_ = window_gain_ = kUnit;
    }
  }

  // ---- what follows

  void set_pacing_rate(std::uint32_t bw, std::uint32_t gain) {
    const double rate = rate_bytes_per_s(bw, gain);
    if (full_pipe_ || rate > pacing_bytes_per_s_) pacing_bytes_per_s_ = std::max(rate, 1.0);
  }

  static std::uint64_t pkts_in(std::uint32_t bw, Us us) { return (std::uint64_t{bw} * us) >> kBbrBwShift; }

  // bbr_tso_segs_goal: what 1/1024 s brings (sk_pacing_shift), 127 packets at most.
  std::uint32_t burst_pkts() const {
    const auto pkts = static_cast<std::uint32_t>(pacing_bytes_per_s_ / 1024 / mss_bytes_);
    return std::min(std::max(pkts, min_burst_pkts()), 0x7FU);
  }

  std::uint32_t window_for(std::uint32_t bw, std::uint32_t gain, std::uint32_t extra_pkts = 0) const {
    const std::uint64_t scaled = std::uint64_t{bw} * min_rtt_us_ * gain / kUnit;
    const std::uint64_t bdp_pkts = (scaled + (1U << kBbrBwShift) - 1) >> kBbrBwShift;
    // Enough for a full burst in the sender, one on the way and one being acknowledged; an even number for delayed
    // ACKs.
    std::uint32_t pkts = static_cast<std::uint32_t>(bdp_pkts) + extra_pkts + 3 * burst_pkts();
    pkts = (pkts + 1) & ~1U;
    return mode_ == Mode::kProbeBw && cycle_index_ == 0 ? pkts + 2 : pkts;
  }

  // What will be in the network when the next paced burst leaves.
  std::uint32_t in_net_pkts(std::uint32_t in_flight_pkts, Us pace_wait_us) const {
    const std::uint64_t then_pkts = in_flight_pkts + (pacing_gain_ > kUnit ? burst_pkts() : 0);
    const std::uint64_t delivered_pkts = pkts_in(bandwidth(), pace_wait_us);
    return delivered_pkts >= then_pkts ? 0 : static_cast<std::uint32_t>(then_pkts - delivered_pkts);
  }

  void save_window(const Window& w) {
    const bool undisturbed = last_state_ == SenderState::kOpen && mode_ != Mode::kProbeRtt;
    saved_cwnd_pkts_ = undisturbed ? w.cwnd_pkts : std::max(saved_cwnd_pkts_, w.cwnd_pkts);
  }

  void set_window(Window& w, const AckEvent& ack) {
    if (ack.delivered_pkts > 0) grow_window(w, ack);
    if (mode_ == Mode::kProbeRtt) w.cwnd_pkts = std::min(w.cwnd_pkts, kMinWindowPkts);
  }

  void grow_window(Window& w, const AckEvent& ack) {
    if (recover_or_restore(w, ack)) return;
    const std::uint32_t target_pkts = window_with_aggregation();
    if (full_pipe_)
      w.cwnd_pkts = std::min(w.cwnd_pkts + ack.delivered_pkts, target_pkts);
    else if (w.cwnd_pkts < target_pkts || ack.delivered_total_pkts < kInitialWindowPkts)
      w.cwnd_pkts += ack.delivered_pkts;
    w.cwnd_pkts = std::max(w.cwnd_pkts, kMinWindowPkts);
  }

  std::uint32_t window_with_aggregation() const {
    if (!full_pipe_) return window_for(bandwidth(), window_gain_);
    const std::uint64_t most_pkts = pkts_in(bandwidth(), kAggregationMaxUs);
    const std::uint64_t extra_pkts = std::max(extra_acked_pkts_[0], extra_acked_pkts_[1]);
    return window_for(bandwidth(), window_gain_, static_cast<std::uint32_t>(std::min(extra_pkts, most_pkts)));
  }

  // In recovery's first round one packet leaves for each that arrives; afterwards losses are only taken off. Returns
  // true when that decided the window.
  bool recover_or_restore(Window& w, const AckEvent& ack) {
    const SenderState last = std::exchange(last_state_, ack.state);
    if (ack.lost_pkts > 0) w.cwnd_pkts = w.cwnd_pkts > ack.lost_pkts ? w.cwnd_pkts - ack.lost_pkts : 1;
    if (ack.state == SenderState::kRecovery && last != SenderState::kRecovery) {
      conserve_packets_ = true;
      round_end_delivered_pkts_ = ack.delivered_total_pkts;
      w.cwnd_pkts = ack.in_flight_pkts + ack.delivered_pkts;
    } else if (last != SenderState::kOpen && ack.state == SenderState::kOpen) {
      w.cwnd_pkts = std::max(w.cwnd_pkts, saved_cwnd_pkts_);
      conserve_packets_ = false;
    }
    if (conserve_packets_) w.cwnd_pkts = std::max(w.cwnd_pkts, ack.in_flight_pkts + ack.delivered_pkts);
    return conserve_packets_;
  }

  Mode mode_ = Mode::kStartup;
  std::uint32_t mss_bytes_ = 0;
  SplitMix64 random_{0};
  double pacing_bytes_per_s_ = 1.0;
  std::uint32_t pacing_gain_ = kHighGain;
  std::uint32_t window_gain_ = kHighGain;

  WindowedMax max_bw_;
  std::uint32_t min_rtt_us_ = 0;
  Us min_rtt_at_us_ = 0;
  Us delivered_us_ = 0;  // last delivery
  std::uint32_t rounds_ = 0;
  std::uint64_t round_end_delivered_pkts_ = 0;
  bool round_start_ = false;

  bool full_pipe_ = false;
  std::uint32_t full_bw_ = 0;
  std::uint32_t full_bw_rounds_ = 0;

  std::uint32_t cycle_index_ = 0;
  Us cycle_us_ = 0;  // start of the phase

  Us probe_rtt_done_us_ = 0;  // 0 = in flight has not fallen yet
  bool probe_rtt_round_done_ = false;
  bool idle_restart_ = false;

  SenderState last_state_ = SenderState::kOpen;
  bool conserve_packets_ = false;
  std::uint32_t saved_cwnd_pkts_ = 0;

  PolicerDetector policer_;

  Us epoch_us_ = 0;
  std::uint64_t epoch_acked_pkts_ = 0;
  std::uint64_t extra_acked_pkts_[2] = {0, 0};
  std::uint32_t extra_acked_index_ = 0;
  std::uint32_t extra_acked_rounds_ = 0;
};

}  // namespace reinet

#endif
