// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_WINDOW_USAGE_HPP
#define REINET_WINDOW_USAGE_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"

namespace reinet {

// Whether the window or the application limits the flow (the kernel's tcp_cwnd_validate; RFC 7661 has the reasons): a
// window that is not used must not grow, and one that has not been used for a timeout falls towards what was used.
class WindowUsage {
 public:
  // After each attempt to send. timeout_us() is the retransmission timeout, which is seldom asked for.
  template <class TimeoutUs>
  void validate(Window& w, Us now_us, std::uint32_t una, std::uint32_t next, bool limited, TimeoutUs&& timeout_us,
                bool may_fall) {
    const std::uint32_t out_pkts = next - una;
    const bool new_round = static_cast<std::int32_t>(una - round_end_) >= 0;
    if (new_round || limited || (!limited_ && out_pkts > max_out_pkts_)) {
      limited_ = limited;
      max_out_pkts_ = out_pkts;
      round_end_ = next;
    }
    if (this->limited(w)) {
      used_pkts_ = 0;
      full_us_ = now_us;
      return;
    }
    used_pkts_ = std::max(used_pkts_, out_pkts);
    if (!may_fall || now_us - full_us_ < timeout_us()) return;
    const std::uint32_t worth_pkts = std::max(used_pkts_, kInitialWindowPkts);
    if (worth_pkts < w.cwnd_pkts) {
      keep_ssthresh(w);
      w.cwnd_pkts = (w.cwnd_pkts + worth_pkts) / 2;
    }
    used_pkts_ = 0;
    full_us_ = now_us;
  }

  // In slow start, half of it in use is enough.
  bool limited(const Window& w) const { return limited_ || (w.slow_start() && w.cwnd_pkts < 2 * max_out_pkts_); }

  // After an idle time.
  static void restart(Window& w, Us idle_us, Us timeout_us) {
    if (idle_us <= timeout_us) return;
    keep_ssthresh(w);
    w.cwnd_pkts = reinet_cwnd_after_idle_pkts(w.cwnd_pkts, idle_us, timeout_us);
  }

  // A window that has grown above ssthresh is remembered there, by three quarters.
  static void keep_ssthresh(Window& w) { w.ssthresh_pkts = worth(w); }
  static std::uint32_t worth(const Window& w) { return std::max(w.ssthresh_pkts, w.cwnd_pkts / 2 + w.cwnd_pkts / 4); }

 private:
  bool limited_ = true;
  std::uint32_t max_out_pkts_ = 0;  // in this round
  std::uint32_t round_end_ = 0;
  std::uint32_t used_pkts_ = 0;
  Us full_us_ = 0;  // last time that the window was in full use
};

}  // namespace reinet

#endif
