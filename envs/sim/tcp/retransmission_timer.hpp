// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RETRANSMISSION_TIMER_HPP
#define REINET_RETRANSMISSION_TIMER_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/clock.hpp"
#include "envs/sim/tcp/rtt.hpp"

namespace reinet {

// One timer for two things, as in the kernel: the retransmission timeout with its back-off (RFC 6298) and, before it,
// the tail loss probe (RFC 8985).
class RetransmissionTimer {
 public:
  Us due_us() const { return due_us_; }
  bool is_probe() const { return is_probe_; }

  Us timeout_us(const RttEstimator& rtt) const {
    Us timeout_us = rtt.timeout_us();
    for (std::uint32_t i = 0; i < doublings_ && timeout_us < kMaxTimeoutUs; ++i) timeout_us *= 2;
    return std::min(timeout_us, kMaxTimeoutUs);
  }

  void back_off() { ++doublings_; }
  void on_sample() { doublings_ = 0; }

  void stop() {
    is_probe_ = false;
    due_us_ = kNever;
  }
  void arm(Us now_us, const RttEstimator& rtt) {
    is_probe_ = false;
    due_us_ = now_us + timeout_us(rtt);
  }
  // For the segment that was sent at that time, and no sooner than the next tick.
  void arm_for(Us now_us, const RttEstimator& rtt, Us sent_us) {
    is_probe_ = false;
    due_us_ = std::max(sent_us + timeout_us(rtt), now_us + kTickUs);
  }
  // The probe comes after two round trips; it never delays the timeout of the oldest segment, sent at head_sent_us.
  void arm_probe(Us now_us, const RttEstimator& rtt, Us head_sent_us, std::uint32_t out_pkts) {
    const Us wait_us =
        2 * Us{rtt.srtt_us()} + (out_pkts == 1 ? static_cast<Us>(RttEstimator::kMinVariationUs) : 2 * kTickUs);
    arm_for(now_us, rtt, head_sent_us);
    due_us_ = std::min(now_us + wait_us, due_us_);
    is_probe_ = true;
  }

 private:
  static constexpr Us kTickUs = 1000;               // of the kernel's timers, at HZ = 1000
  static constexpr Us kMaxTimeoutUs = 120'000'000;  // TCP_RTO_MAX

  Us due_us_ = kNever;
  std::uint32_t doublings_ = 0;  // of the timeout
  bool is_probe_ = false;
};

}  // namespace reinet

#endif
