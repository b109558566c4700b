// SPDX-License-Identifier: Apache-2.0
//
// Sprout (Winstein, Sivaraman and Balakrishnan, NSDI 2013), as its authors' implementation has it (sproutconn.cc,
// receiver.cc and sproutbt2.cc, c838669). The receiver keeps a belief over the link's rate (rate_belief.hpp) and sends
// a forecast every 20 ms; the sender answers each with as many packets as what is in flight may grow by: what the link
// will surely deliver in the five ticks after the next one.
//
//   receiver   |  tick  |  tick  |  tick  |      counts what came, and every tick tells the belief
//                   \        \        \          a forecast, 20 ms after the one before
//   sender           flight   flight   flight    the last packet of each says: nothing for 50 ms, perhaps
//
// Here the sender keeps the belief, from ACKs of single packets, which are later by the constant way back. How packets
// differ is N7 in docs/congestion-controls.md. Constants without another reason are the implementation's.
#ifndef REINET_SPROUT_HPP
#define REINET_SPROUT_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>

#include "core/cc/congestion_control.hpp"
#include "core/cc/published/rate_belief.hpp"

namespace reinet {

class Sprout : public ControlDefaults {
 public:
  static constexpr const char* kName = "sprout";
  static constexpr bool kAckedSingly = true;
  static constexpr bool kGrantsPackets = true;

  void on_start(Window& w, const Start& start) {
    w.ssthresh_pkts = 0;
    forecast(w, start.now_us, 0);
  }

  void on_packet_sent(Us sent_us) {
    if (budget_pkts_ > 0) --budget_pkts_;
    if (flights_.empty() || flights_.back().sent_us != sent_us) flights_.push_back({sent_us, 0});
    ++flights_.back().out_pkts;
  }
  void on_packet_delivered(Us sent_us, Us now_us) {
    if (tick_us_ == kNotStarted) tick_us_ = score_us_ = now_us;  // the receiver's clock begins with the first packet
    ++came_pkts_;
    if (leaves_flight(sent_us)) score_us_ = std::max(score_us_, tick_us_ + kFallbackUs);
  }
  void on_packet_lost(Us sent_us) { leaves_flight(sent_us); }

  void on_ack(Window& w, const AckEvent& ack, const RateSample&) { set_window(w, ack.in_flight_pkts); }

  std::uint32_t on_loss(const Window& w, LossCause) { return w.ssthresh_pkts; }

  Us timer_us() const { return std::min(tick_us_ + kTickUs, forecast_us_); }
  void on_timer(Window& w, Us now_us, std::uint32_t in_flight_pkts) {
    if (tick_us_ + kTickUs <= now_us) {
      tick();
      tick_us_ += kTickUs;
    }
    if (forecast_us_ <= now_us) forecast(w, now_us, in_flight_pkts);
  }

 private:
  static constexpr Us kTickUs = 20'000;
  static constexpr Us kNotStarted = kNever - kTickUs;
  static constexpr Us kForecastUs = 20'000;
  static constexpr Us kLateUs = 100;  // how late a process wakes, as on the emulated path (LinkSpec.late_us)
  // A sender without leave to send does so all the same after so long: until then silence is no outage.
  static constexpr Us kFallbackUs = 50'000;
  // A packet's payload; what it counts as at the receiver, where 1400 bytes are one; what it is worth in flight.
  static constexpr double kPayloadBytes = 1440.0, kCountedBytes = 1442.0 / 1400.0, kFlightBytes = 1492.0;

  struct Flight {
    Us sent_us;
    std::uint32_t out_pkts;
  };

  // Returns whether that was the last of its flight.
  bool leaves_flight(Us sent_us) {
    const auto flight =
        std::find_if(flights_.begin(), flights_.end(), [&](const Flight& f) { return f.sent_us == sent_us; });
    if (flight == flights_.end() || --flight->out_pkts > 0) return false;
    flights_.erase(flight);
    return true;
  }

  void tick() {
    belief_.evolve();
    // Silence is told unless the sender may have had nothing to send.
    if (came_pkts_ > 0 || tick_us_ >= score_us_)
      belief_.observe(static_cast<std::uint32_t>(std::lround(came_pkts_ * kCountedBytes)));
    came_pkts_ = 0;
  }

  void forecast(Window& w, Us now_us, std::uint32_t in_flight_pkts) {
    forecast_us_ = now_us + kForecastUs + kLateUs;
    const double pkts = belief_.cautious_pkts(true) - static_cast<double>(belief_.cautious_pkts(false));
    const double bytes = kPayloadBytes * pkts - kFlightBytes * in_flight_pkts;
    budget_pkts_ = static_cast<std::uint32_t>(std::max(0.0, std::round(bytes / kPayloadBytes)));
    set_window(w, in_flight_pkts);
  }

  // With nothing in flight one packet looks whether the link is there. The implementation's is nearly empty, and goes
  // out 50 ms after the last one even if some are in flight.
  void set_window(Window& w, std::uint32_t in_flight_pkts) const {
    w.cwnd_pkts = std::max(in_flight_pkts + budget_pkts_, 1U);
  }

  RateBelief belief_;
  std::deque<Flight> flights_;     // that have packets out
  std::uint32_t budget_pkts_ = 0;  // may still be sent on the last forecast
  std::uint32_t came_pkts_ = 0;    // in this tick
  Us tick_us_ = kNotStarted;       // its start
  Us score_us_ = 0;                // from then on a tick without packets counts
  Us forecast_us_ = kNever;        // when the next comes
};

}  // namespace reinet

#endif
