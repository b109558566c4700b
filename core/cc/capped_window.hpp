// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_CAPPED_WINDOW_HPP
#define REINET_CAPPED_WINDOW_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"
#include "core/cc/fallen_window.h"
#include "core/cc/withheld_window.h"

namespace reinet {

// reinet's cap on one sender's window, as apply_cap of kshim/bpf/cap.bpf.h puts it: of the simulator's sender and of
// the gate's virtual Cubic.
class CappedWindow {
 public:
  void set(std::uint32_t cap_pkts) { cap_pkts_ = cap_pkts; }  // 0 = none

  // At every ACK, before a loss that it tells of: all below una is acknowledged.
  void on_ack(std::uint32_t una) { reinet_fallen_on_ack(&fallen_, una); }

  // next: the segment to be sent next; timeout_us: of retransmission. Where the window follows ssthresh, that remembers
  // what the cap takes away.
  void apply(Window& w, std::uint32_t next, Us timeout_us, bool follows_ssthresh) {
    if (cap_pkts_ == 0) reinet_withheld_forget(&withheld_);
    if (cap_pkts_ == 0 || w.cwnd_pkts <= cap_pkts_) return;
    if (follows_ssthresh) {
      reinet_withheld_on_cap(&withheld_, w.cwnd_pkts, static_cast<std::uint32_t>(timeout_us));
      w.ssthresh_pkts = std::max(w.ssthresh_pkts, w.cwnd_pkts);
      reinet_fallen_on_cap(&fallen_, w.cwnd_pkts, next);
    }
    w.cwnd_pkts = cap_pkts_;
  }

  // After a pause of the application's.
  void give_back(Window& w, Us idle_us) {
    w.cwnd_pkts = reinet_withheld_given_back_pkts(&withheld_, w.cwnd_pkts, idle_us);
  }

  // Returns the ssthresh that a loss leads to: the control's, of the window that the loss is to blame on.
  template <CongestionControl Control>
  std::uint32_t on_loss(Control& control, const Window& w, LossCause cause) {
    reinet_withheld_forget(&withheld_);
    Window blamed = w;
    blamed.cwnd_pkts = reinet_fallen_cwnd_pkts(&fallen_, w.cwnd_pkts);
    return reinet_fallen_ssthresh_pkts(&fallen_, w.cwnd_pkts, control.on_loss(blamed, cause));
  }

 private:
  std::uint32_t cap_pkts_ = 0;
  reinet_fallen_window fallen_{};
  reinet_withheld_window withheld_{};
};

}  // namespace reinet

#endif
