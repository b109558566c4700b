// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RENO_HPP
#define REINET_RENO_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"

namespace reinet {

// NewReno (RFC 5681; the kernel's tcp_cong.c) adds a packet per window delivered and halves the window at a loss, which
// then has two packets at least, as tcp_reno_ssthresh has it.
class Reno : public ControlDefaults {
 public:
  static constexpr const char* kName = "reno";

  void on_delivered(Window& w, const AckEvent& ack) {
    if (!ack.window_limited) return;
    const std::uint32_t pkts = w.slow_start() ? slow_start(w, ack.delivered_pkts) : ack.delivered_pkts;
    if (pkts > 0) increase_.add(w, w.cwnd_pkts, pkts);
  }

  std::uint32_t on_loss(const Window& w, LossCause) { return std::max(w.cwnd_pkts / 2, 2U); }
  void on_state(SenderState state, const AckEvent&) {
    if (state != SenderState::kOpen) increase_.reset();
  }

 private:
  AdditiveIncrease increase_;
};

}  // namespace reinet

#endif
