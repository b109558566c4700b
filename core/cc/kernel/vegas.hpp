// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_VEGAS_HPP
#define REINET_VEGAS_HPP

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/cc/congestion_control.hpp"
#include "core/cc/kernel/reno.hpp"

namespace reinet {

// Vegas (Brakmo and Peterson, 1995) with the kernel's choices (tcp_vegas.c): once per round, the packets that wait in
// the queue, window x (RTT - base) / base, are brought between 2 and 4; slow start ends when more than one waits. It is
// Reno while losses are mended.
class Vegas : public ControlDefaults {
 public:
  static constexpr const char* kName = "vegas";

  void on_sample(Window&, const AckEvent& ack) {
    if (ack.rtt_us < 0) return;
    const std::uint32_t rtt_us = static_cast<std::uint32_t>(ack.rtt_us) + 1;  // never 0
    base_rtt_us_ = std::min(base_rtt_us_, rtt_us);
    round_rtt_us_ = std::min(round_rtt_us_, rtt_us);
    ++samples_;
  }

  void on_delivered(Window& w, const AckEvent& ack) {
    if (!active_) {
      reno_.on_delivered(w, ack);
    } else if (static_cast<std::int32_t>(ack.una - round_end_) > 0) {
      round_end_ = ack.next;
      end_round(w, ack);
      samples_ = 0;
      round_rtt_us_ = kNoRtt;
    } else if (w.slow_start()) {
      slow_start(w, ack.delivered_pkts);
    }
  }

  std::uint32_t on_loss(const Window& w, LossCause cause) { return reno_.on_loss(w, cause); }

  void on_state(SenderState state, const AckEvent& ack) {
    reno_.on_state(state, ack);
    active_ = state == SenderState::kOpen;
    if (active_) activate(ack.next);
  }

  // After an idle time the path may be another.
  void on_restart(Window&, const Restart& restart) {
    base_rtt_us_ = kNoRtt;
    active_ = true;
    activate(restart.next);
  }

 private:
  // The kernel's alpha, beta and gamma: too few wait, too many wait, slow start is over.
  static constexpr std::uint32_t kAlphaPkts = 2, kBetaPkts = 4, kGammaPkts = 1;
  static constexpr std::uint32_t kMinWindowPkts = 2;  // tcp_vegas_cong_avoid's least
  // A round of fewer samples may have delayed ACKs' only; the kernel then goes by Reno, too.
  static constexpr std::uint32_t kEnoughSamples = 3;
  static constexpr std::uint32_t kNoRtt = std::numeric_limits<std::int32_t>::max();  // the kernel's 0x7fffffff

  void activate(std::uint32_t next) {
    round_end_ = next;
    samples_ = 0;
    round_rtt_us_ = kNoRtt;
  }

  void end_round(Window& w, const AckEvent& ack) {
    if (samples_ < kEnoughSamples) {
      reno_.on_delivered(w, ack);
      return;
    }
    const std::uint64_t cwnd_pkts = w.cwnd_pkts;
    const auto waiting_pkts = static_cast<std::uint32_t>(cwnd_pkts * (round_rtt_us_ - base_rtt_us_) / base_rtt_us_);
    if (w.slow_start() && waiting_pkts > kGammaPkts) {
      const auto empty_queue_pkts = static_cast<std::uint32_t>(cwnd_pkts * base_rtt_us_ / round_rtt_us_);
      w.cwnd_pkts = std::min(w.cwnd_pkts, empty_queue_pkts + 1);
      lower_ssthresh(w);
    } else if (w.slow_start()) {
      slow_start(w, ack.delivered_pkts);
    } else if (waiting_pkts > kBetaPkts) {
      --w.cwnd_pkts;
      lower_ssthresh(w);
    } else if (waiting_pkts < kAlphaPkts) {
      ++w.cwnd_pkts;
    }
    w.cwnd_pkts = std::max(w.cwnd_pkts, kMinWindowPkts);
    w.ssthresh_pkts = std::max(w.ssthresh_pkts, w.cwnd_pkts / 2 + w.cwnd_pkts / 4);  // tcp_current_ssthresh
  }

  // Slow start has ended and does not begin again.
  static void lower_ssthresh(Window& w) { w.ssthresh_pkts = std::min(w.ssthresh_pkts, w.cwnd_pkts); }

  Reno reno_;
  bool active_ = true;
  std::uint32_t base_rtt_us_ = kNoRtt;
  std::uint32_t round_rtt_us_ = kNoRtt;  // the round's least
  std::uint32_t samples_ = 0;
  std::uint32_t round_end_ = 0;
};

}  // namespace reinet

#endif
