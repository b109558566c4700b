// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_CAPPED_WINDOW_HPP
#define REINET_CAPPED_WINDOW_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/cap_limited.h"
#include "core/cc/congestion_control.hpp"
#include "core/cc/outage.h"
#include "core/cc/withheld_window.h"

namespace reinet {

// reinet's cap on one sender's window, as apply_cap of kshim/bpf/cap.bpf.h puts it: of the simulator's sender and of
// the gate's virtual Cubic.
class CappedWindow {
 public:
  void set(std::uint32_t cap_pkts) { cap_pkts_ = cap_pkts; }  // 0 = none

  // At every ACK, before a loss that it tells of.
  void on_ack(const AckEvent& ack) {
    reinet_outage_on_ack(&outage_, static_cast<std::uint64_t>(ack.now_us), ack.rtt_us, ack.min_rtt_us, ack.una,
                         ack.next);
  }

  // After the control has set the window for an ACK; timeout_us: of retransmission. Where the window follows ssthresh,
  // that remembers what the cap takes away, and PRR's is left alone; a model of the path is not to learn the cap.
  // in_force_pkts: the window until this ACK, before the control let it grow.
  template <CongestionControl Control>
  void apply(Window& w, const Control& control, const AckEvent& ack, Us timeout_us, std::uint32_t in_force_pkts) {
    if (cap_pkts_ == 0) reinet_withheld_forget(&withheld_);
    if (cap_pkts_ == 0 || w.cwnd_pkts <= cap_pkts_) return;
    if constexpr (requires { control.full_pipe(); }) {
      if (!control.full_pipe()) return;
      w.app_limited_until_pkts =
          reinet_cap_limited_until(&limited_until_, static_cast<std::uint32_t>(w.app_limited_until_pkts),
                                   static_cast<std::uint32_t>(ack.delivered_total_pkts), ack.in_flight_pkts);
    } else if constexpr (!ModelControl<Control>) {
      if (ack.state == SenderState::kRecovery) return;
      reinet_withheld_on_cap(&withheld_, in_force_pkts, cap_pkts_, static_cast<std::uint32_t>(ack.delivered_total_pkts),
                             static_cast<std::uint32_t>(std::min<Us>(timeout_us, ~0U)));
      w.ssthresh_pkts = std::max(w.ssthresh_pkts, w.cwnd_pkts);
    }
    const std::uint32_t capped_pkts =
        reinet_outage_capped_pkts(&outage_, cap_pkts_, ack.in_flight_pkts, ack.una, ack.next);
    w.cwnd_pkts = std::min(w.cwnd_pkts, capped_pkts);
  }

  // Returns whether it is the cap, and not the application, for which the flow counts as limited.
  bool limits(const Window& w) const { return limited_until_ != 0 && w.app_limited_until_pkts == limited_until_; }

  // After a pause of the application's.
  void give_back(Window& w, Us idle_us) {
    w.cwnd_pkts = reinet_withheld_given_back_pkts(&withheld_, w.cwnd_pkts, idle_us);
  }

  // Returns the ssthresh that a loss leads to: the control's, of the window that the loss is to blame on.
  template <CongestionControl Control>
  std::uint32_t on_loss(Control& control, const Window& w, LossCause cause) {
    Window blamed = w;
    blamed.cwnd_pkts = reinet_withheld_blamed_pkts(&withheld_, w.cwnd_pkts);
    return reinet_blamed_ssthresh_pkts(blamed.cwnd_pkts, w.cwnd_pkts, control.on_loss(blamed, cause));
  }

 private:
  std::uint32_t cap_pkts_ = 0;
  reinet_outage outage_{};
  reinet_withheld_window withheld_{};
  std::uint32_t limited_until_ = 0;
};

}  // namespace reinet

#endif
