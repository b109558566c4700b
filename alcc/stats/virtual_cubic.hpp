// SPDX-License-Identifier: Apache-2.0
//
// The window that Cubic would have if the gate were its only limit. Until a cap was in force that is the kernel's own,
// which goes with single ACKs. From the first cap on that one does not follow the gate: it neither grows while the
// application holds back nor tells of what a capped sender would use. A record's cwnd is this one, so that FlowStats
// and the heads mean here what they mean under the kernel's cap. The law is core/cc/kernel/cubic.hpp.
#ifndef REINET_ALCC_VIRTUAL_CUBIC_HPP
#define REINET_ALCC_VIRTUAL_CUBIC_HPP

#include <cstdint>
#include <limits>

#include "alcc/stats/kernel_view.hpp"
#include "core/cc/capped_window.hpp"
#include "core/cc/kernel/cubic.hpp"

namespace reinet::alcc {

// What came between two looks.
struct Heard {
  Us since_us, now_us;  // the looks
  std::int32_t rtt_us;  // mean of the ACKs' samples
  std::uint32_t acks;   // at least one
  std::uint32_t delivered_pkts;
};

class VirtualCubic {
 public:
  // Takes what came since the last look as so many ACKs, evenly spread, for HyStart counts them and the time between
  // them. window_limited: somebody wants to send more than may be sent. cap_pkts: in force, 0 = none.
  void on_look(const KernelView& view, const Heard& heard, bool window_limited, std::uint32_t cap_pkts) {
    const tcp_info& i = view.info;
    AckEvent ack{};
    ack.rtt_us = heard.rtt_us;
    ack.in_flight_pkts = ack.prior_in_flight_pkts = view.in_flight_pkts();
    ack.srtt_us = i.tcpi_rtt;
    ack.min_rtt_us = i.tcpi_min_rtt;
    ack.window_limited = window_limited;
    const std::uint32_t next = i.tcpi_data_segs_out, una = next - i.tcpi_unacked;
    const auto part = [&](std::uint64_t whole, std::uint32_t acks) { return whole * acks / heard.acks; };
    for (std::uint32_t n = 1; n <= heard.acks; ++n) {
      ack.now_us = heard.since_us + part(heard.now_us - heard.since_us, n);
      ack.next = next_ + static_cast<std::uint32_t>(part(next - next_, n));
      ack.una = una_ + static_cast<std::uint32_t>(part(una - una_, n));
      ack.acked_pkts = ack.delivered_pkts =
          static_cast<std::uint32_t>(part(heard.delivered_pkts, n) - part(heard.delivered_pkts, n - 1));
      ack.delivered_total_pkts = i.tcpi_delivered - heard.delivered_pkts + part(heard.delivered_pkts, n);
      cap_.on_ack(ack);
      control_.on_sample(window_, ack);
      if (n == 1) take_state(i.tcpi_ca_state, ack);
      if (state_ == SenderState::kRecovery) continue;
      const std::uint32_t in_force_pkts = window_.cwnd_pkts;
      control_.on_delivered(window_, ack);
      cap_.set(cap_pkts);
      cap_.apply(window_, control_, ack, i.tcpi_rto, in_force_pkts);
    }
    next_ = next;
    una_ = una;
    if (cap_pkts != 0) capped_ = true;
    if (!capped_) window_ = {i.tcpi_snd_cwnd, i.tcpi_snd_ssthresh};
  }

  std::uint32_t cwnd_pkts() const { return window_.cwnd_pkts; }
  std::uint32_t ssthresh_pkts() const { return window_.ssthresh_pkts; }

 private:
  void take_state(std::uint8_t ca_state, const AckEvent& ack) {
    const SenderState state = ca_state == 4               ? SenderState::kLoss  // TCP_CA_Loss
                              : ca_state >= kRecoveryFrom ? SenderState::kRecovery
                                                          : SenderState::kOpen;
    if (state != SenderState::kOpen && state_ == SenderState::kOpen) {
      const bool timeout = state == SenderState::kLoss;
      window_.ssthresh_pkts = cap_.on_loss(control_, window_, timeout ? LossCause::kTimeout : LossCause::kAcks);
      window_.cwnd_pkts = timeout ? 1 : window_.ssthresh_pkts;  // PRR would bring it there within a round trip
    }
    if (state != state_) control_.on_state(state, ack);
    state_ = state;
  }

  Window window_{kInitialWindowPkts, std::numeric_limits<std::int32_t>::max(), 0};
  CappedWindow cap_;
  Cubic control_;
  SenderState state_ = SenderState::kOpen;
  bool capped_ = false;               // by now
  std::uint32_t next_ = 0, una_ = 0;  // at the last look that heard something
};

}  // namespace reinet::alcc

#endif
