// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_CLEAN_SLATE_HPP
#define REINET_CLEAN_SLATE_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"
#include "core/cc/kernel/reno.hpp"

namespace reinet {

// DeepCC's Clean-Slate (section VI-B): no congestion control below the policy; what it decides is the window itself,
// also in recovery, and nothing moves it until the next decision. Before there is a decision, and where the gate wants
// none, it is Reno; the paper does not say what goes on then (N8 in docs/congestion-controls.md).
class CleanSlate : public ControlDefaults {
 public:
  static constexpr const char* kName = "clean-slate";

  // Before each ACK: the cap in force, 0 = none.
  void on_cap(std::uint32_t cap_pkts) { cap_pkts_ = cap_pkts; }

  void on_ack(Window& w, const AckEvent& ack, const RateSample&) {
    if (cap_pkts_) {
      w.cwnd_pkts = cap_pkts_;
    } else if (ack.state == SenderState::kRecovery) {
      w.cwnd_pkts = std::min(w.cwnd_pkts, w.ssthresh_pkts);
    } else {
      reno_.on_delivered(w, ack);
    }
  }

  std::uint32_t on_loss(const Window& w, LossCause cause) { return cap_pkts_ ? w.cwnd_pkts : reno_.on_loss(w, cause); }
  void on_state(SenderState state, const AckEvent& ack) { reno_.on_state(state, ack); }

 private:
  Reno reno_;
  std::uint32_t cap_pkts_ = 0;
};

}  // namespace reinet

#endif
