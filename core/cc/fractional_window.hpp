// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_FRACTIONAL_WINDOW_HPP
#define REINET_FRACTIONAL_WINDOW_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"

namespace reinet {

// A window with fractions of a packet, for laws that move it by less at each ACK. The connection has its whole packets;
// whoever else moves that, a cap or recovery, moves this with it.
class FractionalWindow {
 public:
  double pkts(const Window& w) {
    if (w.cwnd_pkts != shown_pkts_) pkts_ = w.cwnd_pkts;
    return pkts_;
  }
  void set(Window& w, double pkts) {
    pkts_ = pkts;
    w.cwnd_pkts = shown_pkts_ = static_cast<std::uint32_t>(std::clamp(pkts, 1.0, kMaxPkts));
  }

 private:
  static constexpr double kMaxPkts = 1e6;  // above any cap (MAX_CAP_PKTS) and within 32 bits

  double pkts_ = 0.0;
  std::uint32_t shown_pkts_ = 0;
};

}  // namespace reinet

#endif
