// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_C2TCP_HPP
#define REINET_C2TCP_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/cc/congestion_control.hpp"
#include "core/cc/kernel/cubic.hpp"

namespace reinet {

// C2TCP (Abbasloo et al., 2019): Cubic with a bound on its delay. An RTT below the setpoint, the flow's target, is a
// good condition and adds to the window; one above it for an interval is a bad one, and the window starts again at
// one packet. While the condition stays bad the interval shrinks with the square root of the count, as CoDel's does.
// What the paper leaves open is N2 in docs/congestion-controls.md.
class C2tcp : public ControlDefaults {
 public:
  static constexpr const char* kName = "c2tcp";

  void on_start(Window&, const Start& start) {
    if (start.target_us > 0) setpoint_us_ = start.target_us;
  }

  void on_sample(Window& w, const AckEvent& ack) {
    cubic_.on_sample(w, ack);
    if (ack.rtt_us < 0) return;
    good_ = static_cast<std::uint32_t>(ack.rtt_us) < setpoint_us_;
    if (good_) {
      bad_ = false;
      backoffs_ = 0;
    } else if (!bad_) {
      bad_ = true;
      backoff_us_ = ack.now_us + kIntervalUs;
    }
  }

  void on_delivered(Window& w, const AckEvent& ack) {
    cubic_.on_delivered(w, ack);
    if (good_ && !w.slow_start() && ack.window_limited) {
      extra_.add(w, w.cwnd_pkts, kGoodGain * ack.delivered_pkts);
    } else if (bad_ && ack.now_us >= backoff_us_) {
      ++backoffs_;
      backoff_us_ = ack.now_us + static_cast<Us>(kIntervalUs / std::sqrt(backoffs_));
      w.ssthresh_pkts = cubic_.on_loss(w, LossCause::kAcks);
      w.cwnd_pkts = 1;
    }
  }

  std::uint32_t on_loss(const Window& w, LossCause cause) { return cubic_.on_loss(w, cause); }
  void on_state(SenderState state, const AckEvent& ack) { cubic_.on_state(state, ack); }
  void on_restart(Window& w, const Restart& restart) { cubic_.on_restart(w, restart); }

 private:
  static constexpr Us kIntervalUs = 100'000;     // CoDel's INTERVAL (RFC 8289)
  static constexpr std::uint32_t kGoodGain = 1;  // k of the k/cwnd per ACK: Reno's increase on top of Cubic's

  Cubic cubic_;
  AdditiveIncrease extra_;
  std::uint32_t setpoint_us_ = 100'000;  // where no target is set (N2)
  bool good_ = false;
  bool bad_ = false;
  Us backoff_us_ = 0;
  std::uint32_t backoffs_ = 0;
};

}  // namespace reinet

#endif
