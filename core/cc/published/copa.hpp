// SPDX-License-Identifier: Apache-2.0
//
// Copa (Arun and Balakrishnan, NSDI 2018), as its authors' implementation has it (genericCC, markoviancc.cc and
// rtt-window.cc, 18299d6). The window moves towards RTTstanding / (delta dq), dq = RTTstanding - RTTmin: by
// v / (delta w) per ACK, with a velocity v that doubles once per round trip while the direction holds. Paced at twice
// the window per RTTstanding. Where the queue never empties others fill it, and 1/delta follows AIMD on losses.
//
//            smallest RTT of four smoothed ones < RTTmin + a tenth of their range
//   default <------------------------------------------------------------------- competitive
//   (delta = 0.5)  ------------------------------------------------------------> (1/delta + 1 per RTT,
//                                          otherwise                              halved by a loss)
//
// Where the implementation and the paper differ, the implementation's are N3 in docs/congestion-controls.md. Constants
// without another reason are the implementation's.
#ifndef REINET_COPA_HPP
#define REINET_COPA_HPP

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/cc/congestion_control.hpp"
#include "core/cc/fractional_window.hpp"
#include "core/cc/sliding_minimum.hpp"

namespace reinet {

template <bool kSwitchesMode>
class CopaLaw : public ControlDefaults {
 public:
  static constexpr bool kAckedSingly = true;
  static constexpr std::uint32_t kMostIpBytes = 1440 + 28;  // its packet_size, with the headers of IP and UDP

  void on_start(Window& w, const Start& start) {
    mss_bytes_ = start.mss_bytes;
    standing_us_ = std::max(start.rtt_us, 1U);
    w.ssthresh_pkts = 0;
    window_.set(w, kProbePkts);
    set_pacing_rate();
  }

  void on_ack(Window& w, const AckEvent& ack, const RateSample&) {
    if (ack.rtt_us >= 0) measure(ack);
    double pkts = window_.pkts(w);
    adapt_delta(ack.now_us, false, latest_us_);
    for (std::uint32_t i = 0; i < ack.delivered_pkts; ++i)
      if (++acked_pkts_ >= 2 * kProbePkts) pkts = moved(pkts, ack.now_us);
    if (ack.lost_pkts > 0) adapt_delta(ack.now_us, true, 0);
    if (too_lossy(ack)) pkts *= kDecrease;
    window_pkts_ = std::max(pkts, kMinWindowPkts);
    window_.set(w, window_pkts_);
    set_pacing_rate();
  }

  std::uint32_t on_loss(const Window& w, LossCause) { return w.ssthresh_pkts; }

  double pacing_bytes_per_s() const { return pacing_bytes_per_s_; }
  std::uint32_t min_burst_pkts() const { return 1; }

  // Nothing was heard for two seconds: it starts anew, and forgets the path.
  Us timeout_us() const { return kTimeoutUs; }
  void on_timeout(Window& w, Us now_us, std::uint32_t) {
    const std::uint32_t mss_bytes = mss_bytes_, standing_us = standing_us_;
    *this = CopaLaw{};
    on_start(w, {now_us, standing_us, mss_bytes, 0, 0});
  }

 private:
  static constexpr double kDelta = 0.5;            // the paper's default: two packets of the flow's own in the queue
  static constexpr std::uint32_t kProbePkts = 10;  // the first window; it stays for two of its round trips
  static constexpr double kMinWindowPkts = 2.0;
  static constexpr Us kMinRttWindowUs = 10'000'000;  // the paper's, or 20 RTTs where those are longer
  static constexpr double kNearlyEmpty = 0.1;        // of the range of the RTT
  static constexpr std::uint32_t kRecentRtts = 4;    // over which that range is taken
  static constexpr double kSrttShare = 1.0 / 16.0;   // of a sample in the smoothed RTT
  static constexpr Us kTimeoutUs = 2'000'000;
  // The window falls if more than 0.3 of at least 20 packets in two round trips are lost.
  static constexpr double kMostLost = 0.3, kDecrease = 0.7;
  static constexpr std::uint32_t kLossWindowPkts = 20;

  void measure(const AckEvent& ack) {
    const auto rtt_us = static_cast<std::uint32_t>(ack.rtt_us);
    latest_us_ = rtt_us;
    srtt_us_ = srtt_us_ == 0.0 ? rtt_us : kSrttShare * rtt_us + (1.0 - kSrttShare) * srtt_us_;
    const Us most_us = std::max<Us>(kMinRttWindowUs, 20 * Us{min_rtt_.value() == ~0U ? 0 : min_rtt_.value()});
    const auto recent_us = std::min(most_us, static_cast<Us>(kRecentRtts * srtt_us_));
    min_rtt_.add(most_us, ack.now_us, rtt_us);
    standing_.add(std::min(most_us, static_cast<Us>(srtt_us_ / 2)), ack.now_us, rtt_us);
    recent_min_.add(recent_us, ack.now_us, rtt_us);
    recent_max_.add(recent_us, ack.now_us, rtt_us);
    standing_us_ = std::max(standing_.value(), 1U);
    queueing_us_ = standing_us_ - std::min(min_rtt_.value(), standing_us_);
  }

  bool queue_empties() const {
    return recent_min_.value() < min_rtt_.value() + kNearlyEmpty * (recent_max_.value() - min_rtt_.value());
  }

  void adapt_delta(Us now_us, bool lost, std::uint32_t rtt_us) {
    if constexpr (kSwitchesMode) {
      if (queue_empties()) {
        if (delta_us_ == 0 || delta_loss_us_ + rtt_us < now_us) {
          delta_ = kDelta;
          delta_us_ = now_us;
        }
        return;
      }
      if (lost && delta_loss_us_ < now_us) {
        delta_ *= 2;
        delta_loss_us_ = now_us;
      } else if (delta_us_ + rtt_us < now_us) {
        delta_ = 1 / (1 / delta_ + 1);
        delta_us_ = now_us;
      }
      delta_ = std::min(delta_, kDelta);
    }
  }

  // Returns the window after one more packet was acknowledged.
  double moved(double pkts, Us now_us) {
    const double target_pkts = queueing_us_ == 0 ? std::numeric_limits<double>::max()
                                                 : standing_us_ / (delta_ * static_cast<double>(queueing_us_));
    if (starting_) {
      starting_ = pkts + 1 < target_pkts;
      return pkts + 1;
    }
    if (round_us_ + latest_us_ < now_us) {
      const bool holds = rising_ ? balance_ > 0 : balance_ < 0;
      velocity_ = holds ? 2.0 * static_cast<int>(velocity_) : 1.0;
      if (!holds) rising_ = !rising_;
      round_us_ = now_us;
      balance_ = 0;
    }
    if (velocity_ > pkts * delta_) velocity_ /= 2;
    velocity_ = std::max(velocity_, 1.0);
    const double step_pkts = velocity_ / (delta_ * pkts);
    const bool below = pkts < target_pkts;
    balance_ += below ? 1 : -1;
    return std::max(below ? pkts + step_pkts : pkts - step_pkts, kMinWindowPkts);
  }

  bool too_lossy(const AckEvent& ack) {
    lost_pkts_ += ack.lost_pkts;
    seen_pkts_ += ack.lost_pkts + ack.delivered_pkts;
    if (ack.now_us <= loss_window_us_ + 2 * Us{latest_us_} || seen_pkts_ <= kLossWindowPkts) return false;
    const bool lossy = lost_pkts_ > kMostLost * seen_pkts_;
    loss_window_us_ = ack.now_us;
    lost_pkts_ = seen_pkts_ = 0;
    return lossy;
  }

  void set_pacing_rate() { pacing_bytes_per_s_ = std::max(2.0 * window_pkts_ * mss_bytes_ * 1e6 / standing_us_, 1.0); }

  FractionalWindow window_;
  double window_pkts_ = kProbePkts;
  SlidingMinimum min_rtt_;
  SlidingMinimum standing_;  // over half a smoothed RTT: what jitter adds is left out
  SlidingMinimum recent_min_;
  SlidingMaximum recent_max_;
  std::uint32_t mss_bytes_ = 0;
  std::uint32_t latest_us_ = 0;
  double srtt_us_ = 0.0;
  std::uint32_t standing_us_ = 1;
  std::uint32_t queueing_us_ = 0;
  double pacing_bytes_per_s_ = 1.0;
  double delta_ = kDelta;
  Us delta_us_ = 0, delta_loss_us_ = 0;  // when it was last changed, and last by a loss
  double velocity_ = 1.0;
  bool starting_ = true;
  bool rising_ = true;  // the direction of the round before
  int balance_ = 1;     // of the round: ACKs below the target less those above
  Us round_us_ = 0;     // when it began
  Us loss_window_us_ = 0;
  std::uint32_t acked_pkts_ = 0;  // without bound of meaning: only the first twenty count
  std::uint32_t lost_pkts_ = 0, seen_pkts_ = 0;
};

class Copa : public CopaLaw<true> {
 public:
  static constexpr const char* kName = "copa";
};

// Copa that takes the path for its own, always: delta stays 0.5.
class CopaDefault : public CopaLaw<false> {
 public:
  static constexpr const char* kName = "copa-default";
};

}  // namespace reinet

#endif
