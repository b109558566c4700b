// SPDX-License-Identifier: Apache-2.0
//
// PIE (RFC 8033, in the earlier form of the draft) as mm-link has it, on a clock of milliseconds: arrivals are dropped
// with a probability that a proportional-integral controller moves every 30 ms, by how far the queueing delay, which is
// estimated as bytes queued / departure rate, is from its reference and how it has changed.
#ifndef REINET_PIE_HPP
#define REINET_PIE_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/random.hpp"
#include "core/wire.hpp"
#include "envs/sim/path/fifo.hpp"

namespace reinet {

class Pie {
 public:
  Pie(std::uint32_t reference_ms, std::uint32_t max_burst_ms, std::uint64_t now_ms, std::uint64_t seed)
      : reference_ms_(static_cast<std::int32_t>(reference_ms)),
        max_burst_ms_(max_burst_ms),
        updated_ms_(now_ms),
        random_(seed) {}

  // Returns false for a packet to be dropped early; one that does not fit is dropped without asking.
  [[gnu::noinline]] bool admits(const Fifo& fifo, bool fits, std::uint64_t now_ms) {
    update(fifo, now_ms);
    if (!fits) return false;
    if (burst_ms_ > 0 || (old_delay_ms_ < reference_ms_ / 2 && drop_probability_ < 0.2)) return true;
    if (fifo.bytes() < 2 * kOpportunityBytes) return true;
    return random_.uniform() >= drop_probability_;
  }

  // A packet has left the fifo.
  [[gnu::noinline]] void departed(const Packet& p, const Fifo& fifo, std::uint64_t now_ms) {
    measure(p, fifo, now_ms);
    update(fifo, now_ms);
  }

 private:
  static constexpr std::uint64_t kUpdateMs = 30;          // the draft's T_UPDATE; RFC 8033 has half of it
  static constexpr std::uint32_t kMeasuredBytes = 16384;  // DQ_THRESHOLD: the departure rate is that of so many bytes
  static constexpr double kAlpha = 0.125, kBeta = 1.25;   // alpha and beta, per second

  void measure(const Packet& p, const Fifo& fifo, std::uint64_t now_ms) {
    const bool backlogged = fifo.bytes() >= kMeasuredBytes;
    if (backlogged && !measuring_) {
      measuring_ = true;
      measured_from_ms_ = now_ms;
      measured_bytes_ = 0;
    }
    if (!measuring_) return;
    measured_bytes_ += p.wire_bytes;
    const auto elapsed_ms = static_cast<std::uint32_t>(now_ms - measured_from_ms_);
    if (measured_bytes_ <= kMeasuredBytes || elapsed_ms == 0) return;
    const std::uint32_t rate = measured_bytes_ / elapsed_ms;
    rate_bytes_per_ms_ = rate_bytes_per_ms_ == 0 ? rate : rate_bytes_per_ms_ - rate_bytes_per_ms_ / 8 + rate / 8;
    measuring_ = backlogged;
    measured_from_ms_ = now_ms;
    measured_bytes_ = 0;
    burst_ms_ -= std::min(burst_ms_, elapsed_ms);
  }

  // The updates that were due since the last one; the queue has not changed meanwhile.
  void update(const Fifo& fifo, std::uint64_t now_ms) {
    for (; now_ms - updated_ms_ > kUpdateMs; updated_ms_ += kUpdateMs) {
      old_delay_ms_ = delay_ms_;
      delay_ms_ = rate_bytes_per_ms_ > 0 ? static_cast<std::int32_t>(fifo.bytes() / rate_bytes_per_ms_) : 0;
      const double step = kAlpha * (delay_ms_ - reference_ms_) + kBeta * (delay_ms_ - old_delay_ms_);
      // Small steps while the probability is small, so that it can settle there.
      const double scale = drop_probability_ < 0.01 ? 128 : drop_probability_ < 0.1 ? 32 : 16;
      const double wanted = drop_probability_ + step / scale;
      drop_probability_ = std::clamp(wanted, 0.0, 1.0);
      if (delay_ms_ == 0 && old_delay_ms_ == 0 && fifo.empty() && wanted <= 1) drop_probability_ *= 0.98;
      burst_ms_ -= std::min(burst_ms_, static_cast<std::uint32_t>(kUpdateMs));
      const bool calm = delay_ms_ < reference_ms_ / 2 && old_delay_ms_ < reference_ms_ / 2;
      if (drop_probability_ == 0 && calm && rate_bytes_per_ms_ > 0) {
        measuring_ = false;
        rate_bytes_per_ms_ = 0;
        burst_ms_ = max_burst_ms_;
      }
    }
  }

  std::int32_t reference_ms_;
  std::uint32_t max_burst_ms_;
  std::uint64_t updated_ms_;
  SplitMix64 random_;
  double drop_probability_ = 0.0;
  std::int32_t delay_ms_ = 0, old_delay_ms_ = 0;
  std::uint32_t burst_ms_ = 0;  // still admitted without dice
  std::uint32_t rate_bytes_per_ms_ = 0;
  std::uint64_t measured_from_ms_ = 0;
  std::uint32_t measured_bytes_ = 0;
  bool measuring_ = false;
};

}  // namespace reinet

#endif
