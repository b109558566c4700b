// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RECEIVE_WINDOW_HPP
#define REINET_RECEIVE_WINDOW_HPP

#include <algorithm>
#include <cstdint>

#include "envs/sim/path/packet.hpp"

namespace reinet {

// The window that a Linux receiver offers, in packets: it opens by two with every packet in order, up to a limit that
// autotuning raises when more was read in a round trip than in any before (tcp_grow_window, tcp_rcv_space_adjust). It
// is never what limits a sender here; it matters because each packet that opens it is acknowledged at once.
class ReceiveWindow {
 public:
  // back_us: what an ACK takes to the sender.
  explicit ReceiveWindow(Us back_us) : back_us_(back_us) {}

  // Takes a packet in order that was sent at sent_us, and all that it made readable, up to next_seq. True if it opens
  // the window.
  bool take(std::uint32_t next_seq, Us sent_us, Us now_us) {
    if (now_us >= round_end_us_) [[unlikely]] {
      autotune(next_seq - round_start_seq_);
      round_end_us_ = now_us + (now_us - sent_us + back_us_);  // a round trip, measured by this packet
      round_start_seq_ = next_seq;
    }
    if (window_pkts_ >= limit_pkts_) return false;
    window_pkts_ += 2;
    return true;
  }

 private:
  static constexpr std::uint32_t kInitialPkts = 44;     // 64 KB
  static constexpr std::uint32_t kMostPkts = 2172;      // half of tcp_rmem's 6 MB
  static constexpr std::uint32_t kFirstRoundPkts = 10;  // a sender's initial window

  void autotune(std::uint32_t read_pkts) {
    if (read_pkts <= most_read_pkts_) return;
    // Twice as much, as this is known one round trip late, and twice the growth, for a sender that doubles its rate.
    const std::uint64_t twice_pkts = 2 * std::uint64_t{read_pkts};
    const std::uint64_t wanted_pkts = twice_pkts + 2 * twice_pkts * (read_pkts - most_read_pkts_) / most_read_pkts_;
    limit_pkts_ = std::max(limit_pkts_, static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted_pkts, kMostPkts)));
    most_read_pkts_ = read_pkts;
  }

  Us back_us_;
  Us round_end_us_ = 0;
  std::uint32_t round_start_seq_ = 0;
  std::uint32_t most_read_pkts_ = kFirstRoundPkts;  // in a round trip
  std::uint32_t window_pkts_ = kInitialPkts;
  std::uint32_t limit_pkts_ = kInitialPkts;
};

}  // namespace reinet

#endif
