// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_UPLINK_HPP
#define REINET_UPLINK_HPP

#include <cstdint>
#include <span>

#include "core/wire.hpp"
#include "envs/sim/path/packet.hpp"
#include "envs/sim/path/schedule.hpp"

namespace reinet {

// The ACKs' direction where it has a trace: mm-link with a queue without limit, which all flows of a path share. An
// opportunity carries as many ACKs as fit into it. When an ACK leaves is known as it comes, so this has no events of
// its own.
class Uplink {
 public:
  // late_us: how late every sleep ends; 0 = opportunities are used at their time. The trace outlives this.
  Uplink(std::span<const std::uint32_t> trace_ms, Us now_us, Us late_us)
      : late_us_(late_us), schedule_(trace_ms), used_ms_(now_us / kUsPerMs) {
    schedule_.seek_after(used_ms_);
  }

  // Takes an ACK; calls come in the order of time. Returns when its last byte leaves: at an opportunity after the
  // millisecond in which it came, for up to that one they are past, and at the phase at which the link's process then
  // went to sleep (link.hpp).
  Us carry(Us now_us, std::uint32_t wire_bytes) {
    const std::uint64_t now_ms = now_us / kUsPerMs;
    if (used_ms_ <= now_ms) {  // nothing waits, so what was left of the opportunity is lost
      schedule_.skip_until(now_ms);
      use_next();
    }
    while (wire_bytes > left_bytes_) {  // goes on at the next opportunity
      wire_bytes -= left_bytes_;
      use_next();
    }
    left_bytes_ -= wire_bytes;
    return used_ms_ * kUsPerMs + (late_us_ == 0 ? 0 : now_us % kUsPerMs + late_us_);
  }

 private:
  void use_next() {
    used_ms_ = schedule_.next_ms();
    schedule_.advance();
    left_bytes_ = kOpportunityBytes;
  }

  Us late_us_;
  Schedule schedule_;
  std::uint64_t used_ms_;         // the opportunity that the last ACK leaves with,
  std::uint32_t left_bytes_ = 0;  // and what is left of it
};

}  // namespace reinet

#endif
