// SPDX-License-Identifier: Apache-2.0
//
// What the connections of a server know together (core/peers/peers.hpp), in memory that its processes share: one
// client's connections may be of several, as where each has a process of its own.
#ifndef REINET_ALCC_SHARED_PEERS_HPP
#define REINET_ALCC_SHARED_PEERS_HPP

#include <atomic>
#include <cstdint>

#include "core/peers/peers.hpp"

namespace reinet::alcc {

class SharedPeers {
 public:
  // Takes a record before anybody else does. Never waits for long: a process may have been stopped or killed in here.
  void annotate(Neighbour& own, reinet_flow_stats& s) {
    if (!enter(s.time_ns)) {
      s.flags |= REINET_FLAG_COMPANY;
      s.peer_delivered_bytes = s.share_bytes = s.delivered_bytes;
      return;
    }
    table_.annotate(own, s);
    since_ns_.store(0, std::memory_order_release);
  }

 private:
  static constexpr int kTries = 100;  // a record takes some 25 ns in here
  // Whoever has been in here for so long has ended, or was stopped; what it left half written is soon written again.
  static constexpr std::uint64_t kDeadNs = 1'000'000'000;

  bool enter(std::uint64_t now_ns) {
    for (int i = 0; i < kTries; ++i) {
      std::uint64_t since_ns = 0;
      if (since_ns_.compare_exchange_weak(since_ns, now_ns, std::memory_order_acquire)) return true;
      if (since_ns != 0 && now_ns > since_ns + kDeadNs &&
          since_ns_.compare_exchange_strong(since_ns, now_ns, std::memory_order_acquire))
        return true;
    }
    return false;
  }

  std::atomic<std::uint64_t> since_ns_ = 0;  // somebody is in here, 0 = nobody
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock would be of one process");
  PeerTable table_;
};

}  // namespace reinet::alcc

#endif
