// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_LINK_LOG_HPP
#define REINET_LINK_LOG_HPP

#include <cstdint>
#include <deque>
#include <vector>

#include "envs/sim/path/packet.hpp"

namespace reinet {

// What Mahimahi would have logged, without the opportunities, which the trace tells. A packet's delay is that of all
// queues on its way: of the link's, and of a wired link's before it. Not inlined: few links keep one.
struct LinkLog {
  std::vector<double> arrival_ms, departure_ms, departure_delay_ms, drop_ms;
  std::vector<std::uint32_t> arrival_bytes, departure_bytes, drop_bytes;
  std::vector<std::uint16_t> arrival_flow, departure_flow, drop_flow;

  [[gnu::noinline]] void arrived(const Packet& p, std::uint64_t now_ms) {
    arrival_ms.push_back(static_cast<double>(now_ms));
    arrival_bytes.push_back(p.wire_bytes);
    arrival_flow.push_back(p.flow);
  }
  [[gnu::noinline]] void departed(const Packet& p, std::uint64_t now_ms) {
    departure_ms.push_back(static_cast<double>(now_ms));
    departure_bytes.push_back(p.wire_bytes);
    departure_flow.push_back(p.flow);
    departure_delay_ms.push_back(static_cast<double>(now_ms - p.arrives_us / kUsPerMs) + wired_ms(p));
  }
  [[gnu::noinline]] void dropped(const Packet& p, std::uint64_t now_ms) {
    drop_ms.push_back(static_cast<double>(now_ms));
    drop_bytes.push_back(p.wire_bytes);
    drop_flow.push_back(p.flow);
  }
  // The wired link has taken the packet as it was sent, and will be through with it at that time.
  [[gnu::noinline]] void passed_wired(const Packet& p, Us leaves_us) {
    if (p.flow >= wired_.size()) wired_.resize(p.flow + 1u);
    wired_[p.flow].push_back({p.seq, p.sent_us, leaves_us});
  }

 private:
  struct Passed {
    std::uint32_t seq;
    Us sent_us, leaves_us;
  };

  // Returns how long the wired link had the packet, 0 where there is none. A flow's packets keep their order, so those
  // before it have left or are lost.
  double wired_ms(const Packet& p) {
    if (p.flow >= wired_.size()) return 0.0;
    std::deque<Passed>& own = wired_[p.flow];
    while (own.front().seq != p.seq || own.front().sent_us != p.sent_us) own.pop_front();
    return static_cast<double>(own.front().leaves_us - p.sent_us) / kUsPerMs;
  }

  std::vector<std::deque<Passed>> wired_;  // of each flow, what has not left the link behind
};

}  // namespace reinet

#endif
