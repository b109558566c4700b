// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_WIRED_HPP
#define REINET_WIRED_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "envs/sim/path/link_log.hpp"
#include "envs/sim/path/packet.hpp"
#include "envs/sim/path/ring.hpp"

namespace reinet {

// The rate from that time on.
struct RateStep {
  Us from_us;
  double mbps;  // 0 = nothing gets through
};

// A wired link that all flows of a path share before the cellular one: a droptail buffer, one packet after the other at
// a rate that changes at given times. When a packet leaves is known as it comes, so this has no events of its own.
class WiredLink {
 public:
  // steps: times rise, the first is the start of the simulation and the last rate is above 0.
  // log: of the link behind, which outlives this; nullptr = none is kept.
  WiredLink(std::vector<RateStep> steps, std::uint32_t buffer_bytes, LinkLog* log)
      : steps_(std::move(steps)), buffer_bytes_(buffer_bytes), log_(log) {}

  // Takes a packet as it is sent; calls come in the order of time. Returns when its last byte leaves, kNever if the
  // buffer is full, which counts the packet being sent.
  Us carry(const Packet& p) {
    const Us now_us = p.sent_us;
    const std::uint32_t wire_bytes = p.wire_bytes;
    for (; !waiting_.empty() && waiting_.front().leaves_us <= now_us; waiting_.pop())
      waiting_bytes_ -= waiting_.front().wire_bytes;
    if (waiting_bytes_ + wire_bytes > buffer_bytes_) return kNever;
    free_us_ = end_of(wire_bytes * 8.0, std::max(static_cast<double>(now_us), free_us_));
    const Us leaves_us = static_cast<Us>(free_us_) + 1;  // the next whole microsecond
    waiting_.push({leaves_us, wire_bytes});
    waiting_bytes_ += wire_bytes;
    if (log_) log_->passed_wired(p, leaves_us);
    return leaves_us;
  }

  std::size_t heap_bytes() const { return steps_.capacity() * sizeof(RateStep) + waiting_.heap_bytes(); }

 private:
  struct Waiting {
    Us leaves_us;
    std::uint32_t wire_bytes;
  };

  // Returns when bits that start at from_us are through; 1 Mbit/s is one bit per microsecond.
  double end_of(double bits, double from_us) {
    for (;;) {
      const bool last = step_ + 1 == steps_.size();
      const double until_us = last ? 0.0 : static_cast<double>(steps_[step_ + 1].from_us);
      const double mbps = steps_[step_].mbps;
      if (last || from_us + bits / mbps <= until_us) return from_us + bits / mbps;
      if (from_us < until_us) {
        bits -= (until_us - from_us) * mbps;
        from_us = until_us;
      }
      ++step_;
    }
  }

  std::vector<RateStep> steps_;
  std::size_t step_ = 0;  // in force at free_us_
  std::uint32_t buffer_bytes_;
  LinkLog* log_;
  Ring<Waiting> waiting_;
  std::uint64_t waiting_bytes_ = 0;
  double free_us_ = 0.0;  // all that was taken is through
};

}  // namespace reinet

#endif
