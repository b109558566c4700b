// SPDX-License-Identifier: Apache-2.0
//
// The window that Cubic would have if the gate were its only limit. The kernel's own window does not follow the gate:
// it neither grows while the application holds back nor tells of what a capped sender would use. A record's cwnd is
// this one, so that FlowStats and the heads mean here what they mean under the kernel's cap. The law is the landed one.
#ifndef REINET_ALCC_VIRTUAL_CUBIC_HPP
#define REINET_ALCC_VIRTUAL_CUBIC_HPP

#include <cstdint>
#include <limits>

#include "alcc/gate/kernel_view.hpp"
#include "core/cc/capped_window.hpp"
#include "core/cc/kernel/cubic.hpp"

namespace reinet::alcc {

class VirtualCubic {
 public:
  // Takes what came since the last look as one ACK. window_limited: somebody wants to send more than may be sent.
  // cap_pkts: in force, 0 = none.
  void on_look(const KernelView& view, Us now_us, std::int32_t rtt_us, std::uint32_t delivered_pkts,
               bool window_limited, std::uint32_t cap_pkts) {
    const tcp_info& i = view.info;
    AckEvent ack{};
    ack.now_us = now_us;
    ack.rtt_us = rtt_us;
    ack.next = i.tcpi_data_segs_out;
    ack.una = ack.next - i.tcpi_unacked;
    ack.acked_pkts = ack.delivered_pkts = delivered_pkts;
    ack.delivered_total_pkts = i.tcpi_delivered;
    ack.in_flight_pkts = ack.prior_in_flight_pkts = view.in_flight_pkts();
    ack.srtt_us = i.tcpi_rtt;
    ack.min_rtt_us = i.tcpi_min_rtt;
    ack.window_limited = window_limited;
    cap_.on_ack(ack.una);
    control_.on_sample(window_, ack);
    const SenderState state = i.tcpi_ca_state == 4               ? SenderState::kLoss  // TCP_CA_Loss
                              : i.tcpi_ca_state >= kRecoveryFrom ? SenderState::kRecovery
                                                                 : SenderState::kOpen;
    if (state != SenderState::kOpen && state_ == SenderState::kOpen) {
      const bool timeout = state == SenderState::kLoss;
      window_.ssthresh_pkts = cap_.on_loss(control_, window_, timeout ? LossCause::kTimeout : LossCause::kAcks);
      window_.cwnd_pkts = timeout ? 1 : window_.ssthresh_pkts;  // PRR would bring it there within a round trip
    }
    if (state != state_) control_.on_state(state, ack);
    state_ = state;
    if (state == SenderState::kRecovery) return;
    const std::uint32_t in_force_pkts = window_.cwnd_pkts;
    control_.on_delivered(window_, ack);
    cap_.set(cap_pkts);
    cap_.apply(window_, control_, ack, i.tcpi_rto, in_force_pkts);
  }

  std::uint32_t cwnd_pkts() const { return window_.cwnd_pkts; }
  std::uint32_t ssthresh_pkts() const { return window_.ssthresh_pkts; }

 private:
  Window window_{kInitialWindowPkts, std::numeric_limits<std::int32_t>::max(), 0};
  CappedWindow cap_;
  Cubic control_;
  SenderState state_ = SenderState::kOpen;
};

}  // namespace reinet::alcc

#endif
