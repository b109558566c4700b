// SPDX-License-Identifier: Apache-2.0
//
// Copa (Arun and Balakrishnan, 2018). The window moves towards RTTstanding / (delta dq), dq = RTTstanding - RTTmin: by
// v / (delta w) per ACK, with a velocity v that doubles once per round while the direction holds. Paced at twice the
// window per RTTstanding. Where others keep the queue full, 1/delta follows AIMD on losses (competitive mode). Choices
// that differ from the paper are N3 in docs/congestion-controls.md.
#ifndef REINET_COPA_HPP
#define REINET_COPA_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"
#include "core/cc/fractional_window.hpp"
#include "core/cc/windowed_max.hpp"

namespace reinet {

class Copa : public ControlDefaults {
 public:
  static constexpr const char* kName = "copa";

  void on_start(Window& w, const Start& start) {
    mss_bytes_ = start.mss_bytes;
    standing_us_ = start.rtt_us;
    last_empty_us_ = start.now_us;
    w.ssthresh_pkts = 0;
    set_pacing_rate(w);
  }

  void on_ack(Window& w, const AckEvent& ack, const RateSample&) {
    if (ack.lost_pkts > 0) lost_in_round_ = true;
    if (ack.rtt_us >= 0) measure(ack);
    const bool round_over = static_cast<std::int32_t>(ack.una - round_end_) >= 0;
    if (ack.delivered_pkts > 0) move_window(w, ack);
    if (round_over) end_round(w, ack);
    set_pacing_rate(w);
  }

  std::uint32_t on_loss(const Window& w, LossCause) { return w.ssthresh_pkts; }

  double pacing_bytes_per_s() const { return pacing_bytes_per_s_; }
  std::uint32_t min_burst_pkts() const { return 1; }

 private:
  static constexpr double kDelta = 0.5;              // the paper's default: two packets of the flow's own in the queue
  static constexpr Us kMinRttWindowUs = 10'000'000;  // the paper's, or 20 RTTs where those are longer
  static constexpr double kMinWindowPkts = 2.0;      // a receiver that delays ACKs answers two at once
  // Velocity doubles only after the direction has held for three rounds (section 2.1): one round's change takes another
  // to be seen.
  static constexpr std::uint32_t kRoundsBeforeDoubling = 3;
  static constexpr double kMaxStep = 0.5;      // of the window, per packet: a bound where the law has none (N3)
  static constexpr double kNearlyEmpty = 0.1;  // of the largest queueing delay of the last four rounds
  static constexpr std::uint32_t kRecentRounds = 4;
  static constexpr std::uint32_t kCompetitiveRounds = 5;  // the paper's: without a nearly empty queue, others fill it

  void measure(const AckEvent& ack) {
    const auto rtt_us = static_cast<std::uint32_t>(ack.rtt_us);
    const auto now = static_cast<std::uint32_t>(ack.now_us);
    const Us window_us = std::max<Us>(kMinRttWindowUs, 20 * Us{min_rtt_.value() == ~0U ? rtt_us : min_rtt_.value()});
    min_rtt_.add(static_cast<std::uint32_t>(window_us), now, rtt_us);
    standing_.add(std::max(ack.srtt_us / 2, 1U), now, rtt_us);
    max_rtt_.add(std::max(kRecentRounds * ack.srtt_us, 1U), now, rtt_us);
    standing_us_ = std::max(standing_.value(), 1U);
    queueing_us_ = standing_us_ - std::min(min_rtt_.value(), standing_us_);
    const std::uint32_t largest_us = max_rtt_.value() - std::min(min_rtt_.value(), max_rtt_.value());
    if (queueing_us_ <= kNearlyEmpty * largest_us) last_empty_us_ = ack.now_us;
    competitive_ = ack.now_us - last_empty_us_ > kCompetitiveRounds * Us{ack.srtt_us};
    if (!competitive_) delta_ = kDelta;
  }

  void move_window(Window& w, const AckEvent& ack) {
    const double pkts = window_.pkts(w);
    const bool below = pkts * delta_ * queueing_us_ <= standing_us_;  // a target without bound at dq = 0
    if (starting_ && below) {
      window_.set(w, pkts + ack.delivered_pkts);
      return;
    }
    starting_ = false;
    if (below != up_ && velocity_ > 1) velocity_ = 1;
    up_ = below;
    const double step_pkts = velocity_ * ack.delivered_pkts / (delta_ * pkts);
    window_.set(w, std::max(below ? pkts + step_pkts : pkts - step_pkts, kMinWindowPkts));
  }

  void end_round(const Window& w, const AckEvent& ack) {
    round_end_ = ack.next;
    if (competitive_) {
      const double inverse = lost_in_round_ ? 1 / (2 * delta_) : 1 / delta_ + 1;
      delta_ = std::min(1 / inverse, kDelta);
    }
    lost_in_round_ = false;
    const bool rose = w.cwnd_pkts > round_cwnd_pkts_;
    rounds_held_ = rose == rose_ && !starting_ ? rounds_held_ + 1 : 0;
    if (rounds_held_ == 0)
      velocity_ = 1;
    else if (rounds_held_ >= kRoundsBeforeDoubling)
      velocity_ = std::min(2 * velocity_, std::max(1.0, kMaxStep * delta_ * w.cwnd_pkts * w.cwnd_pkts));
    rose_ = rose;
    round_cwnd_pkts_ = w.cwnd_pkts;
  }

  void set_pacing_rate(const Window& w) {
    pacing_bytes_per_s_ = std::max(2.0 * w.cwnd_pkts * mss_bytes_ * 1e6 / standing_us_, 1.0);
  }

  FractionalWindow window_;
  WindowedMin min_rtt_;
  WindowedMin standing_;  // over half a smoothed RTT: what ACK compression and delayed ACKs add is left out
  WindowedMax max_rtt_;
  std::uint32_t mss_bytes_ = 0;
  std::uint32_t standing_us_ = 1;
  std::uint32_t queueing_us_ = 0;
  double pacing_bytes_per_s_ = 1.0;
  double delta_ = kDelta;
  double velocity_ = 1;
  bool starting_ = true;
  bool up_ = true;
  bool rose_ = true;
  bool competitive_ = false;
  bool lost_in_round_ = false;
  std::uint32_t rounds_held_ = 0;
  std::uint32_t round_cwnd_pkts_ = 0;
  std::uint32_t round_end_ = 0;
  Us last_empty_us_ = 0;
};

}  // namespace reinet

#endif
