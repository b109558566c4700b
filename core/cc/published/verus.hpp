// SPDX-License-Identifier: Apache-2.0
//
// Verus (Zaki et al., SIGCOMM 2015), as its authors' implementation has it (verus_server.cpp, 4b1bbf0). Every 5 ms a
// delay is aimed at, a little above or below the last one as the largest delay of the epoch rises or falls; a profile
// learnt from the ACKs (delay_profile.hpp) tells the window that gave such a delay; what is sent in the epoch brings
// the flow to that window within a round trip.
//
//               a loss, 500 ms of delay or a timeout             a packet is missing for 150 ms, or a timeout
//   slow start -------------------------------------> profile ------------------------------------> loss
//        ^                                             |   ^                                          |
//        +---- no window of the profile has the delay -+   +-- an ACK of a packet sent in a window ---+
//                                                              no larger than the present one
//
// How it differs is N6 in docs/congestion-controls.md. Constants without another reason are the implementation's.
#ifndef REINET_VERUS_HPP
#define REINET_VERUS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/cc/congestion_control.hpp"
#include "core/cc/published/delay_profile.hpp"

namespace reinet {

class Verus : public ControlDefaults {
 public:
  static constexpr const char* kName = "verus";
  static constexpr bool kAckedSingly = true;
  static constexpr bool kGrantsPackets = true;
  static constexpr std::uint32_t kMostIpBytes = 1450 + 28;  // its MTU, with the headers of IP and UDP

  void on_start(Window& w, const Start& start) {
    w.ssthresh_pkts = 0;
    heard_us_ = start.now_us;
    epoch_end_us_ = start.now_us + kEpochUs;
    start_slowly(start.now_us, 0);
    set_window(w, 0);
  }

  void on_packet_sent(Us sent_us) {
    if (budget_pkts_ > 0) --budget_pkts_;
    if (sent_.empty() || sent_.back().sent_us != sent_us || sent_.back().window_pkts != whole_window_pkts())
      sent_.push_back({sent_us, whole_window_pkts()});
    while (sent_.front().sent_us + kRememberUs < sent_us) sent_.pop_front();
  }
  void on_packet_delivered(Us sent_us, Us) {
    if (sent_us <= forgotten_us_ && forgotten_pkts_ > 0) --forgotten_pkts_;
    came_sent_us_ = sent_us;
  }
  void on_packet_lost(Us sent_us) {
    if (sent_us > forgotten_us_)
      overtaken_.push_back({sent_us, window_at(sent_us)});
    else if (forgotten_pkts_ > 0)
      --forgotten_pkts_;
  }

  void on_ack(Window& w, const AckEvent& ack, const RateSample&) {
    for (const Missing& one : overtaken_) missing_.push_back({ack.now_us + kMissingUs, one.window_pkts});
    overtaken_.clear();
    if (ack.delivered_pkts > 0) take(ack);
    if (slow_start_) budget_pkts_ = whole(window_pkts_ - in_flight(ack.in_flight_pkts));
    set_window(w, ack.in_flight_pkts);
  }

  std::uint32_t on_loss(const Window& w, LossCause) { return w.ssthresh_pkts; }

  // Nothing was heard for five delays: all that was out is lost.
  Us timeout_us() const {
    return slow_start_ && delay_ms_ == 0.0
               ? kMostTimeoutUs
               : std::clamp(static_cast<Us>(5000.0 * delay_ms_), kLeastTimeoutUs, kMostTimeoutUs);
  }
  void on_timeout(Window&, Us now_us, std::uint32_t in_flight_pkts) {
    if (!slow_start_) {
      in_loss_ = true;
      target_ms_ = min_ms_;
    }
    slow_start_ = false;
    forget(now_us, in_flight_pkts);
  }

  Us timer_us() const { return epoch_end_us_; }
  void on_timer(Window& w, Us now_us, std::uint32_t in_flight_pkts) {
    epoch_end_us_ = now_us + kEpochUs;
    expire(now_us, in_flight_pkts);
    if (!slow_start_ && fit_us_ <= now_us) {
      fit_us_ = now_us + kFitUs;
      if (!profile_.fit(fit_below_pkts_)) start_slowly(now_us, in_flight_pkts);
      fit_below_pkts_ = ~0U;
    }
    if (!slow_start_) choose_window(now_us, in_flight_pkts);
    set_window(w, in_flight_pkts);
  }

 private:
  // The paper's symbols stand first.
  static constexpr Us kEpochUs = 5'000;                      // epsilon
  static constexpr Us kFitUs = 1'000'000;                    // between two curves
  static constexpr double kDelta1Ms = 1.0, kDelta2Ms = 2.0;  // delta1, delta2: steps of the delay aimed at
  static constexpr double kMostRatio = 6.0;                  // R: Dmax / Dmin above it asks for less delay
  static constexpr double kDecrease = 0.7;                   // M: of the window at a loss
  static constexpr double kSlowStartExitMs = 500.0;          // a delay above it ends slow start, like a loss
  static constexpr double kOldMaxShare = 0.2;                // of the last Dmax in its average
  static constexpr double kOldDelayShare = 0.875;            // of the smoothed delay
  static constexpr double kNoiseMs = 1e-4;                   // a rise of Dmax below it is none
  static constexpr Us kMissingUs = 150'000;                  // a packet that others overtook is lost after that
  static constexpr Us kLeastTimeoutUs = 150'000, kMostTimeoutUs = 1'000'000;
  static constexpr double kMostMinMs = 1000.0;         // the least delay before any is known
  static constexpr double kMinStepMs = 10.0;           // it rises by, where less delay cannot be had
  static constexpr double kSlowStartPkts = 20.0;       // a smaller window after a loss leaves slow start running
  static constexpr std::uint32_t kLeastFitPkts = 100;  // the first curve knows windows up to that of the loss
  static constexpr Us kRememberUs = 10'000'000;        // what windows were sent with: longer than any delay here

  struct Sent {
    Us sent_us;
    std::uint32_t window_pkts;
  };
  struct Missing {
    Us expires_us;
    std::uint32_t window_pkts;
  };

  static std::uint32_t whole(double pkts) { return static_cast<std::uint32_t>(std::max(0.0, pkts)); }
  std::uint32_t whole_window_pkts() const { return whole(window_pkts_); }

  // What it takes to be in flight: a missing packet still counts, and one that it forgot does not.
  std::int32_t in_flight(std::uint32_t pkts) const {
    return std::max(0, static_cast<std::int32_t>(pkts) - static_cast<std::int32_t>(forgotten_pkts_)) +
           static_cast<std::int32_t>(missing_.size());
  }

  // The window that a packet was sent with.
  std::uint32_t window_at(Us sent_us) const {
    const auto after = std::upper_bound(sent_.begin(), sent_.end(), sent_us,
                                        [](Us us, const Sent& sent) { return us < sent.sent_us; });
    return after == sent_.begin() ? 0 : (after - 1)->window_pkts;
  }

  // All that was sent before now counts no more, nor do its ACKs.
  void forget(Us now_us, std::uint32_t in_flight_pkts) {
    forgotten_us_ = now_us - 1;
    forgotten_pkts_ = in_flight_pkts;
    missing_.clear();
    overtaken_.clear();
  }

  void start_slowly(Us now_us, std::uint32_t in_flight_pkts) {
    profile_ = DelayProfile{};
    slow_start_ = true;
    in_loss_ = holds_target_ = false;
    window_pkts_ = 1.0;
    min_ms_ = kMostMinMs;
    max_ms_ = -1.0;
    smoothed_ms_ = target_ms_ = 0.0;
    delays_ms_.clear();
    fit_us_ = 0;
    fit_below_pkts_ = ~0U;
    forget(now_us, in_flight_pkts);
    session_us_ = now_us - 1;
    budget_pkts_ = 1;
  }

  void take(const AckEvent& ack) {
    const bool sampled = ack.rtt_us >= 0;
    const Us sent_us = sampled ? ack.now_us - static_cast<Us>(ack.rtt_us) : came_sent_us_;
    if (sent_us <= session_us_) return;  // of a slow start before this one
    const std::uint32_t sent_pkts = window_at(sent_us);
    if (sampled) delay_ms_ = ack.rtt_us / 1000.0;
    if (slow_start_ && delay_ms_ > kSlowStartExitMs) {
      window_pkts_ = kDecrease * sent_pkts;
      target_ms_ = profile_.delay_ms(window_pkts_);
      in_loss_ = holds_target_ = true;
      slow_start_ = false;
    }
    if (in_loss_ && sent_pkts <= window_pkts_) {
      delays_ms_.clear();
      in_loss_ = holds_target_ = false;
    }
    if (sent_us > forgotten_us_) {
      heard_us_ = ack.now_us;
      if (sampled) learn(sent_pkts);
    }
    if (slow_start_) ++window_pkts_;
  }

  void learn(std::uint32_t sent_pkts) {
    delays_ms_.push_back(delay_ms_);
    smoothed_ms_ = kOldDelayShare * smoothed_ms_ + (1.0 - kOldDelayShare) * delay_ms_;
    min_ms_ = std::min(min_ms_, delay_ms_);
    if (!in_loss_) {
      profile_.add(sent_pkts, delay_ms_);
    } else {
      window_pkts_ += 1.0 / window_pkts_;
      if (profile_.fitted()) target_ms_ = std::min(target_ms_, profile_.delay_ms(window_pkts_));
    }
  }

  // Takes those that are missing for too long as lost; the first of them is what reduces the window.
  void expire(Us now_us, std::uint32_t in_flight_pkts) {
    bool first = true;
    while (!missing_.empty() && missing_.front().expires_us <= now_us) {
      const std::uint32_t sent_pkts = missing_.front().window_pkts;
      missing_.pop_front();
      if (!first) continue;
      first = false;
      if (!in_loss_) {
        in_loss_ = true;
        window_pkts_ = std::max(1.0, std::min(window_pkts_, kDecrease * sent_pkts));
        target_ms_ = profile_.delay_ms(window_pkts_);
      }
      if (slow_start_ && std::floor(window_pkts_) > kSlowStartPkts) {
        fit_below_pkts_ = std::max(kLeastFitPkts, sent_pkts);
        slow_start_ = false;
        forget(now_us, in_flight_pkts);
      }
    }
  }

  void choose_window(Us now_us, std::uint32_t in_flight_pkts) {
    const double silent_ms = static_cast<double>(now_us - heard_us_) / 1000.0;
    const double last_ms = max_ms_;
    const double largest_ms =
        delays_ms_.empty() ? std::max(last_ms, silent_ms) : *std::max_element(delays_ms_.begin(), delays_ms_.end());
    delays_ms_.clear();
    if (max_ms_ < 0.0) max_ms_ = largest_ms;
    const std::int32_t out_pkts = in_flight(in_flight_pkts);
    bool waits = false;
    if (max_ms_ / min_ms_ > kMostRatio) {
      if (!holds_target_) {
        target_ms_ = std::max(min_ms_, target_ms_ - kDelta2Ms);
        waits = target_ms_ == min_ms_ && out_pkts >= 2;
        if (target_ms_ == min_ms_ && !waits) min_ms_ += kMinStepMs;
      }
    } else if (largest_ms - max_ms_ > kNoiseMs) {
      target_ms_ = std::max(min_ms_, target_ms_ - kDelta1Ms);
    } else {
      target_ms_ += kDelta2Ms;
    }
    const std::uint32_t pkts = profile_.window_pkts(target_ms_);
    if (pkts == 0) {
      start_slowly(now_us, in_flight_pkts);
      return;
    }
    window_pkts_ = pkts;
    max_ms_ = kOldMaxShare * max_ms_ + (1.0 - kOldMaxShare) * largest_ms;
    budget_pkts_ = waits ? 0 : whole(window_pkts_ - acknowledged_first(out_pkts));
  }

  // Of what is in flight, what will not be acknowledged before the round trip is over: the division drops fractions.
  double acknowledged_first(std::int32_t out_pkts) const {
    const auto epochs = static_cast<std::int32_t>(std::ceil(smoothed_ms_ * 1000.0 / kEpochUs));
    return epochs > 1 ? -(out_pkts * (2 - epochs) / (epochs - 1)) : out_pkts;
  }

  void set_window(Window& w, std::uint32_t in_flight_pkts) const {
    w.cwnd_pkts = std::max(in_flight_pkts + budget_pkts_, 1U);
  }

  DelayProfile profile_;
  std::deque<Sent> sent_;           // with which window
  std::deque<Missing> missing_;     // overtaken, not yet lost
  std::vector<Missing> overtaken_;  // by what this ACK acknowledges
  std::vector<double> delays_ms_;   // of this epoch
  bool slow_start_ = true;
  bool in_loss_ = false;
  bool holds_target_ = false;  // slow start ended by a delay: the target stays until the loss is over
  double window_pkts_ = 1.0;
  std::uint32_t budget_pkts_ = 0;  // may still be sent in this epoch
  double target_ms_ = 0.0;
  double delay_ms_ = 0.0;
  double min_ms_ = kMostMinMs;
  double max_ms_ = -1.0;  // smoothed; below 0: none yet
  double smoothed_ms_ = 0.0;
  std::uint32_t forgotten_pkts_ = 0;
  Us forgotten_us_ = 0, session_us_ = 0;  // what was sent up to then
  Us came_sent_us_ = 0;
  Us heard_us_ = 0;
  Us epoch_end_us_ = kNever;
  Us fit_us_ = 0;
  std::uint32_t fit_below_pkts_ = ~0U;
};

}  // namespace reinet

#endif
