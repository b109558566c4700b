// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_CELL_HPP
#define REINET_CELL_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "envs/sim/path/link.hpp"

namespace reinet {

// A cell whose users, one per flow, have a queue each, and a scheduler that gives every transmission time interval of a
// millisecond to one of them. A user's trace is its channel: what it would get if it had the cell to itself.
//
// Proportional fair: of the users with something to send and a channel, the one whose channel is best relative to what
// it has got lately. With one user this is a Link.
class Cell {
 public:
  // users: at least one, all punctual. window_ms: the time constant of "lately".
  Cell(std::vector<Link> users, double window_ms, Us now_us)
      : users_(std::move(users)),
        share_(users_.size(), kFloor),
        forget_(1.0 / window_ms),
        last_ms_(now_us / kUsPerMs) {}

  void arrive(const Packet& p) {
    users_[p.flow].arrive(p);
    next_us_ = std::min(next_us_, users_[p.flow].next_us());
  }

  // Both are the next interval that somebody can use.
  Us due_us() const { return next_us_; }
  Us next_us() const { return next_us_; }

  template <class Deliver>
  void transmit(Us now_us, Deliver&& deliver) {
    forget_until(now_us / kUsPerMs);
    std::size_t chosen = 0;
    double best = -1.0;
    for (std::size_t i = 0; i < users_.size(); ++i) {
      if (users_[i].next_us() != now_us) continue;
      const double merit = static_cast<double>(users_[i].schedule(0).count_at_next()) / share_[i];
      if (merit > best) {
        best = merit;
        chosen = i;
      }
    }
    for (std::size_t i = 0; i < users_.size(); ++i)
      if (i != chosen && users_[i].next_us() == now_us) users_[i].pass_over(now_us);
    for (; users_[chosen].next_us() == now_us; share_[chosen] += forget_) users_[chosen].transmit(now_us, deliver);
    next_us_ = kNever;
    for (const Link& user : users_) next_us_ = std::min(next_us_, user.next_us());
  }

  const Schedule& schedule(std::uint32_t flow) const { return users_[flow].schedule(flow); }
  std::uint32_t queued_pkts() const {
    std::uint32_t pkts = 0;
    for (const Link& user : users_) pkts += user.queued_pkts();
    return pkts;
  }
  std::uint64_t dropped_pkts() const {
    std::uint64_t pkts = 0;
    for (const Link& user : users_) pkts += user.dropped_pkts();
    return pkts;
  }
  std::size_t heap_bytes() const {
    std::size_t bytes = users_.capacity() * sizeof(Link) + share_.capacity() * sizeof(double);
    for (const Link& user : users_) bytes += user.heap_bytes();
    return bytes;
  }

 private:
  // Opportunities per interval below which shares do not fall: a user back from a long idle time wins at once, as it
  // should, and yet is not owed all that it did not use.
  static constexpr double kFloor = 1e-3;

  // What users got fades by 1 / window every millisecond.
  void forget_until(std::uint64_t now_ms) {
    const double keep = std::pow(1.0 - forget_, static_cast<double>(now_ms - last_ms_));
    for (double& share : share_) share = std::max(share * keep, kFloor);
    last_ms_ = now_ms;
  }

  std::vector<Link> users_;
  std::vector<double> share_;  // opportunities per interval, exponentially averaged
  double forget_;
  std::uint64_t last_ms_;
  Us next_us_ = kNever;
};

}  // namespace reinet

#endif
