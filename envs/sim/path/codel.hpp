// SPDX-License-Identifier: Apache-2.0
//
// CoDel (RFC 8289) as mm-link has it, on a clock of milliseconds: once packets have waited longer than the target, with
// more than one opportunity's bytes behind them, for a whole interval, dropping starts; the next drop then comes after
// interval / sqrt(drops so far).
//
// Two ways of mm-link differ from the RFC: its queue must hand out a packet whenever it holds one, so an only packet is
// never dropped; and what it drops is not the packet that waited too long but the one behind it.
#ifndef REINET_CODEL_HPP
#define REINET_CODEL_HPP

#include <cmath>
#include <cstdint>

#include "core/wire.hpp"
#include "envs/sim/path/fifo.hpp"

namespace reinet {

class CoDel {
 public:
  CoDel(std::uint32_t target_ms, std::uint32_t interval_ms) : target_ms_(target_ms), interval_ms_(interval_ms) {}

  // The fifo holds a packet. drop(packet) is called for each that is thrown away.
  template <class Drop>
  [[gnu::noinline]] const Packet& pop(Fifo& fifo, std::uint64_t now_ms, Drop&& drop) {
    const Packet& head = fifo.pop();
    const bool late = is_late(head, fifo, now_ms);
    if (dropping_) {
      dropping_ = late;
      while (dropping_ && now_ms >= next_drop_ms_) {
        dropping_ = drop_next(fifo, now_ms, drop);
        ++drops_;
        if (dropping_) next_drop_ms_ = after(next_drop_ms_);
      }
    } else if (late) {
      drop_next(fifo, now_ms, drop);
      dropping_ = true;
      // Soon after the last time: go on near the rate that was needed then.
      const std::uint32_t recent_drops = drops_ - drops_at_start_;
      drops_ = recent_drops > 1 && now_ms - next_drop_ms_ < 16 * interval_ms_ ? recent_drops : 1;
      next_drop_ms_ = after(now_ms);
      drops_at_start_ = drops_;
    }
    return head;
  }

 private:
  // Returns whether the wait has been too long for a whole interval; fifo holds what is behind the packet.
  bool is_late(const Packet& p, const Fifo& fifo, std::uint64_t now_ms) {
    const std::uint64_t waited_ms = now_ms - p.arrives_us / kUsPerMs;
    if (waited_ms < target_ms_ || fifo.bytes() <= kOpportunityBytes)
      late_from_ms_ = 0;
    else if (late_from_ms_ == 0)
      late_from_ms_ = now_ms + interval_ms_;
    else
      return now_ms >= late_from_ms_;
    return false;
  }

  template <class Drop>
  bool drop_next(Fifo& fifo, std::uint64_t now_ms, Drop&& drop) {
    const Packet& dropped = fifo.pop();
    drop(dropped);
    return is_late(dropped, fifo, now_ms);
  }

  std::uint64_t after(std::uint64_t ms) const {
    return ms + static_cast<std::uint64_t>(static_cast<double>(interval_ms_) / std::sqrt(drops_));
  }

  std::uint64_t target_ms_, interval_ms_;
  std::uint64_t late_from_ms_ = 0;  // 0 = the wait is short
  std::uint64_t next_drop_ms_ = 0;
  std::uint32_t drops_ = 0, drops_at_start_ = 0;  // of this spell of dropping, and as it stood at its start
  bool dropping_ = false;
};

}  // namespace reinet

#endif
