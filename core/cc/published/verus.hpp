// SPDX-License-Identifier: Apache-2.0
//
// Verus (Zaki et al., 2015). Every 5 ms a delay is aimed at, a little above or below the last one as the largest
// delay of the epoch rises or falls; a profile learnt from the ACKs tells the window that gave such a delay; what is
// sent in the epoch brings the flow to that window within a round trip. How the profile differs is N6 in
// docs/congestion-controls.md.
#ifndef REINET_VERUS_HPP
#define REINET_VERUS_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cc/congestion_control.hpp"

namespace reinet {

// Delay by window. Points are averaged as ACKs come; every second a curve is laid through them, here of straight
// lines that never fall, where Verus has a cubic spline: it is read backwards, for which it must be monotonic.
class DelayProfile {
 public:
  void add(std::uint32_t window_pkts, double delay_ms) {
    const std::size_t i = std::min<std::size_t>(std::max(window_pkts, 1U), kMaxWindowPkts) - 1;
    points_ms_[i] = points_ms_[i] == 0.0F ? static_cast<float>(delay_ms)
                                          : static_cast<float>(kOldShare * points_ms_[i] + (1 - kOldShare) * delay_ms);
    used_ = std::max(used_, i + 1);
  }

  void fit() {
    curve_.clear();
    float highest_ms = 0.0F;
    for (std::size_t i = 0; i < used_; ++i) {
      if (points_ms_[i] == 0.0F) continue;
      highest_ms = std::max(highest_ms, points_ms_[i]);
      curve_.push_back({static_cast<float>(i + 1), highest_ms});
    }
  }

  // The largest window whose delay is at most that; beyond the curve, its last slope goes on.
  double window_pkts(double delay_ms) const {
    if (curve_.empty()) return 1.0;
    const auto above = std::upper_bound(curve_.begin(), curve_.end(), delay_ms,
                                        [](double ms, const Point& p) { return ms < p.delay_ms; });
    if (above == curve_.begin()) return std::max(1.0, above->window_pkts * delay_ms / above->delay_ms);
    if (above == curve_.end()) {
      const Point& first = curve_.front();
      const Point& last = curve_.back();
      const double rise_ms = std::max<double>(last.delay_ms - first.delay_ms, kLeastRiseMs);
      const double pkts_per_ms = std::max(1.0F, last.window_pkts - first.window_pkts) / rise_ms;
      return std::min<double>(last.window_pkts + (delay_ms - last.delay_ms) * pkts_per_ms, kMaxWindowPkts);
    }
    const Point& low = *(above - 1);
    const double share = (delay_ms - low.delay_ms) / (above->delay_ms - low.delay_ms);
    return low.window_pkts + share * (above->window_pkts - low.window_pkts);
  }

 private:
  struct Point {
    float window_pkts, delay_ms;
  };
  static constexpr double kOldShare = 0.875;           // the paper's, of a point's average
  static constexpr std::size_t kMaxWindowPkts = 2048;  // 3 MB: above any window of the simulated TCP
  static constexpr double kLeastRiseMs = 1.0;          // a flat curve says nothing of what lies beyond it

  std::vector<float> points_ms_ = std::vector<float>(kMaxWindowPkts);  // 0 = not known
  std::vector<Point> curve_;
  std::size_t used_ = 0;
};

class Verus : public ControlDefaults {
 public:
  static constexpr const char* kName = "verus";

  void on_start(Window& w, const Start& start) {
    epoch_end_us_ = start.now_us + kEpochUs;
    started_us_ = start.now_us;
    w.ssthresh_pkts = 0;
    window_pkts_ = w.cwnd_pkts;
    windows_.fill(static_cast<float>(window_pkts_));
  }

  void on_ack(Window& w, const AckEvent& ack, const RateSample&) {
    srtt_us_ = ack.srtt_us;
    if (ack.rtt_us >= 0) note_delay(ack);
    if (phase_ == Phase::kSlowStart && (ack.lost_pkts > 0 || delay_ms_ > kSlowStartExitMs)) leave_slow_start(ack);
    if (phase_ == Phase::kSlowStart) {
      window_pkts_ += ack.delivered_pkts;
    } else if (ack.lost_pkts > 0 && phase_ == Phase::kProfile) {
      phase_ = Phase::kRecovery;
      recovery_end_ = ack.next;
      window_pkts_ = std::max(kDecrease * window_pkts_, kMinWindowPkts);
    } else if (phase_ == Phase::kRecovery) {
      window_pkts_ += ack.delivered_pkts / window_pkts_;
      if (static_cast<std::int32_t>(ack.una - recovery_end_) >= 0) resume();
    }
    set_window(w, ack.in_flight_pkts);
  }

  std::uint32_t on_loss(const Window& w, LossCause) { return w.ssthresh_pkts; }

  // A timeout: start anew.
  void on_state(SenderState state, const AckEvent&) {
    if (state != SenderState::kLoss) return;
    phase_ = Phase::kSlowStart;
    window_pkts_ = kMinWindowPkts;
  }

  void on_packet_sent(Us) { budget_pkts_ -= 1.0; }
  void on_packet_delivered(Us sent_us, Us now_us) {
    const Us delay_us = now_us - sent_us;
    if (phase_ != Phase::kRecovery && delay_us < kEpochUs * kEpochsKept)
      profile_.add(static_cast<std::uint32_t>(windows_[epoch_of(sent_us)]), static_cast<double>(delay_us) / 1000);
  }
  void on_packet_lost(Us) {}

  Us timer_us() const { return epoch_end_us_; }
  void on_timer(Window& w, Us now_us, std::uint32_t in_flight_pkts) {
    epoch_end_us_ = now_us + kEpochUs;
    if (phase_ == Phase::kProfile) choose_window(now_us);
    windows_[epoch_of(now_us)] = static_cast<float>(window_pkts_);
    epoch_delay_ms_ = 0.0;
    if (phase_ != Phase::kSlowStart) {
      const double n = std::ceil(static_cast<double>(srtt_us_) / kEpochUs);
      const double share = n > 1 ? (2 - n) / (n - 1) : -1.0;  // of what is in flight; the rest is acknowledged in time
      budget_pkts_ = std::max(0.0, window_pkts_ + in_flight_pkts * share) + std::clamp(budget_pkts_, 0.0, 1.0);
    }
    set_window(w, in_flight_pkts);
  }

 private:
  enum class Phase { kSlowStart, kProfile, kRecovery };

  // The paper's, unless another reason is given; its symbols stand first.
  static constexpr Us kEpochUs = 5'000;                      // epsilon
  static constexpr std::size_t kEpochsKept = 1024;           // 5 s: older ACKs teach nothing
  static constexpr Us kFitUs = 1'000'000;                    // between two curves
  static constexpr double kDelta1Ms = 1.0, kDelta2Ms = 2.0;  // delta1, delta2: steps of the delay aimed at
  static constexpr double kMaxRatio = 6.0;                   // R: Dmax / Dmin above it asks for less delay
  static constexpr double kDecrease = 0.7;                   // M: of the window at a loss
  static constexpr double kSlowStartExitMs = 500.0;          // a delay above it ends slow start, like a loss
  static constexpr double kOldMaxShare = 0.2;                // of the last Dmax in its average
  static constexpr double kMinWindowPkts = 2.0;              // a receiver that delays ACKs answers two at once

  std::size_t epoch_of(Us us) const { return static_cast<std::size_t>((us - started_us_) / kEpochUs % kEpochsKept); }

  void note_delay(const AckEvent& ack) {
    delay_ms_ = ack.rtt_us / 1000.0;
    min_ms_ = std::min(min_ms_, std::max(delay_ms_, 0.1));
    epoch_delay_ms_ = std::max(epoch_delay_ms_, delay_ms_);
  }

  void leave_slow_start(const AckEvent& ack) {
    phase_ = Phase::kProfile;
    max_ms_ = target_ms_ = ack.srtt_us / 1000.0;
    profile_.fit();
    fitted_us_ = ack.now_us;
  }

  // After recovery: aim at the delay that is there.
  void resume() {
    phase_ = Phase::kProfile;
    target_ms_ = std::max(delay_ms_, min_ms_);
  }

  void choose_window(Us now_us) {
    if (now_us - fitted_us_ >= kFitUs) {
      profile_.fit();
      fitted_us_ = now_us;
    }
    if (epoch_delay_ms_ == 0.0) return;  // nothing was heard
    const double last_ms = max_ms_;
    max_ms_ = kOldMaxShare * max_ms_ + (1 - kOldMaxShare) * epoch_delay_ms_;
    if (max_ms_ / min_ms_ > kMaxRatio)
      target_ms_ = std::max(min_ms_, target_ms_ - kDelta2Ms);
    else if (max_ms_ > last_ms)
      target_ms_ = std::max(min_ms_, target_ms_ - kDelta1Ms);
    else
      target_ms_ += kDelta2Ms;
    window_pkts_ = std::max(profile_.window_pkts(target_ms_), kMinWindowPkts);
  }

  // In slow start the window bounds what is in flight; afterwards the epoch's budget says what may be added to it.
  void set_window(Window& w, std::uint32_t in_flight_pkts) const {
    const double allowed = phase_ == Phase::kSlowStart ? window_pkts_ : in_flight_pkts + std::max(0.0, budget_pkts_);
    w.cwnd_pkts = std::max(static_cast<std::uint32_t>(allowed), 1U);
  }

  Phase phase_ = Phase::kSlowStart;
  DelayProfile profile_;
  std::array<float, kEpochsKept> windows_{};  // of the last epochs
  double window_pkts_ = kInitialWindowPkts;
  double budget_pkts_ = 0.0;
  double target_ms_ = 0.0;
  double delay_ms_ = 0.0;
  double min_ms_ = 1e9;
  double max_ms_ = 0.0;          // smoothed
  double epoch_delay_ms_ = 0.0;  // the epoch's largest, 0 = none
  std::uint32_t srtt_us_ = 1;
  std::uint32_t recovery_end_ = 0;
  Us started_us_ = 0;
  Us epoch_end_us_ = kNever;
  Us fitted_us_ = 0;
};

}  // namespace reinet

#endif
