// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_EARLIEST_HPP
#define REINET_EARLIEST_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "envs/sim/path/packet.hpp"

namespace reinet {

// Which of several flows has something due first, the lowest number among equals: a tournament, log2(flows) steps per
// change. Node 1 is the root.
class Earliest {
 public:
  explicit Earliest(std::size_t flows) : leaves_(std::bit_ceil(flows)), time_us_(2 * leaves_, kNever) {}

  Us time_us() const { return time_us_[1]; }
  std::uint32_t flow() const {
    std::size_t node = 1;
    while (node < leaves_) {
      const std::size_t left = 2 * node;
      node = time_us_[left] == time_us_[node] ? left : left + 1;
    }
    return static_cast<std::uint32_t>(node - leaves_);
  }
  void set(std::uint32_t flow, Us us) {
    std::size_t node = leaves_ + flow;
    time_us_[node] = us;
    for (node /= 2; node > 0; node /= 2) time_us_[node] = std::min(time_us_[2 * node], time_us_[2 * node + 1]);
  }
  std::size_t heap_bytes() const { return time_us_.capacity() * sizeof(Us); }

 private:
  std::size_t leaves_;
  std::vector<Us> time_us_;
};

// It does the same for one flow, which needs no tournament.
class OnlyFlow {
 public:
  explicit OnlyFlow(std::size_t /*flows*/) {}

  Us time_us() const { return time_us_; }
  static constexpr std::uint32_t flow() { return 0; }
  void set(std::uint32_t /*flow*/, Us us) { time_us_ = us; }
  static constexpr std::size_t heap_bytes() { return 0; }

 private:
  Us time_us_ = kNever;
};

}  // namespace reinet

#endif
