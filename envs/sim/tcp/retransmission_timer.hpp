// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RETRANSMISSION_TIMER_HPP
#define REINET_RETRANSMISSION_TIMER_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/clock.hpp"
#include "core/cc/rtt.hpp"
#include "envs/sim/tcp/scoreboard.hpp"

namespace reinet {

// The one timer of the kernel's for two things: a loss probe (RFC 8985), where one may come first, and the timeout
// (RFC 6298), which doubles each time that it passes without an RTT sample in between.
class RetransmissionTimer {
 public:
  Us due_us() const { return due_us_; }
  bool is_probe() const { return is_probe_; }

  Us timeout_us(const RttEstimator& rtt) const {
    Us timeout_us = rtt.timeout_us();
    for (std::uint32_t i = 0; i < doublings_ && timeout_us < kMaxTimeoutUs; ++i) timeout_us *= 2;
    return std::min(timeout_us, kMaxTimeoutUs);
  }

  void on_sample() { doublings_ = 0; }
  void on_timeout(Us now_us, const RttEstimator& rtt) {
    ++doublings_;
    due_us_ = now_us + timeout_us(rtt);
  }

  // may_probe: a loss probe comes first, after two round trips; it never delays the timeout.
  void arm(Us now_us, const RttEstimator& rtt, const Scoreboard& board, bool may_probe) {
    is_probe_ = false;
    if (board.empty()) {
      due_us_ = kNever;
      return;
    }
    due_us_ = now_us + timeout_us(rtt);
    if (!may_probe || !rtt.known() || board.has_holes()) return;
    const Us wait_us =
        2 * Us{rtt.srtt_us()} + (board.out_pkts() == 1 ? static_cast<Us>(RttEstimator::kMinVariationUs) : 2 * kTickUs);
    due_us_ = std::min(now_us + wait_us, expiry_us(now_us, rtt, board));
    is_probe_ = true;
  }

  // A control's own timeout: no probe, no doubling.
  void arm_at(Us due_us) {
    is_probe_ = false;
    due_us_ = due_us;
  }

  // It was the probe's time, and there was none to send: the timeout is due when it would have been.
  void skip_probe(Us now_us, const RttEstimator& rtt, const Scoreboard& board) {
    is_probe_ = false;
    due_us_ = expiry_us(now_us, rtt, board);
  }

  // The probe went out: the timeout starts anew.
  void on_probe(Us now_us, const RttEstimator& rtt) {
    is_probe_ = false;
    due_us_ = now_us + timeout_us(rtt);
  }

 private:
  static constexpr Us kTickUs = 1000;  // a timer's least wait; two are the kernel's TCP_TIMEOUT_MIN_US at HZ = 1000
  static constexpr Us kMaxTimeoutUs = 120'000'000;

  Us expiry_us(Us now_us, const RttEstimator& rtt, const Scoreboard& board) const {
    return std::max(board.head_sent_us() + timeout_us(rtt), now_us + kTickUs);
  }

  Us due_us_ = kNever;
  std::uint32_t doublings_ = 0;
  bool is_probe_ = false;
};

}  // namespace reinet

#endif
