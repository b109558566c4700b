// SPDX-License-Identifier: Apache-2.0
//
// Records made of TCP_INFO, which is read by a timer and not at each ACK. The rule of core/period.h is the same; what
// an ACK shows elsewhere is told here from two looks at the connection:
//
//   RTT samples   TCP_INFO has none, only their smoothed value s' = 7/8 s + 1/8 sample, moved once for each ACK. With k
//                 segments come in since the last look and q = (7/8)^k, their mean is (s' - q s) / (1 - q).
//   delivered     bytes acknowledged and SACKed; never delivery_rate, which the gate contaminates.
//   round trips   a period ends when more has been delivered than had been sent when it began.
//   lost          there is no lifetime count: retransmitted bytes stand in for it.
#ifndef REINET_ALCC_MEASURE_HPP
#define REINET_ALCC_MEASURE_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "alcc/gate/kernel_view.hpp"
#include "alcc/gate/virtual_cubic.hpp"
#include "core/period.h"

namespace reinet::alcc {

// Returns the mean of the k samples that moved a smoothed RTT from before_us to after_us.
inline double mean_of_samples_us(double before_us, double after_us, std::uint32_t k) {
  if (before_us <= 0) return after_us;
  const double q = std::pow(7.0 / 8.0, k);
  return (after_us - q * before_us) / (1 - q);
}

class Measure {
 public:
  // Takes a look at the connection. Returns true and fills record, but for cookie, target and cap, when a period ended
  // or a silence is to be told. rule: of periods. app_limited: nobody waits to send, at the gate or in the kernel.
  // cap_pkts: in force.
  bool take(const KernelView& view, std::uint64_t now_ns, const reinet_period_config& rule, bool app_limited,
            std::uint32_t cap_pkts, reinet_flow_stats& record) {
    const tcp_info& i = view.info;
    const std::uint32_t segments = i.tcpi_segs_in - segments_;
    const std::uint64_t delivered_bytes = view.delivered_bytes();
    const std::uint32_t delivered_pkts = i.tcpi_delivered - delivered_pkts_;
    const bool heard = looked_ && segments > 0 && delivered_pkts > 0;
    const double before_us = srtt_us_;
    delivered_bytes_ = std::exchange(newest_delivered_bytes_, delivered_bytes);
    segments_ = i.tcpi_segs_in;
    delivered_pkts_ = i.tcpi_delivered;
    srtt_us_ = i.tcpi_rtt;
    if (!looked_) {
      looked_ = true;
      return false;
    }
    if (!heard) return reinet_period_on_tick(&period_, now_ns, view.outstanding(), &record) != 0;

    const std::uint32_t samples = std::min(segments, delivered_pkts);
    const double mean_us = mean_of_samples_us(before_us, i.tcpi_rtt, samples);
    // The smoothed RTT comes in whole microseconds: what rounding takes below the least ever seen is put back.
    const bool known = i.tcpi_min_rtt != 0 && i.tcpi_min_rtt != ~0U;
    const auto rtt_us = static_cast<std::int32_t>(std::clamp(mean_us, known ? i.tcpi_min_rtt : 1.0, 1e9));
    window_.on_look(view, now_ns / 1000, rtt_us, delivered_pkts, !app_limited, cap_pkts);
    reinet_ack& a = period_.last;
    a.time_ns = now_ns;
    a.newest_acked_sent_ns = delivered_bytes > sent_at_start_ ? now_ns : 0;
    a.delivered_bytes = delivered_bytes;
    a.lost_bytes = a.retrans_bytes = i.tcpi_bytes_retrans;
    a.pacing_rate_bytes_per_s = i.tcpi_pacing_rate;
    a.rtt_us = rtt_us;
    a.srtt_us = i.tcpi_rtt;
    a.min_rtt_us = i.tcpi_min_rtt;
    a.cwnd_pkts = window_.cwnd_pkts();
    a.ssthresh_pkts = window_.ssthresh_pkts();
    a.inflight_pkts = view.in_flight_pkts();
    a.mss_bytes = view.mss_bytes();
    a.flags = view.flags() | (app_limited ? REINET_FLAG_APP_LIMITED : 0);
    if (!ends_round(rule, now_ns, delivered_bytes)) return heard_of(samples, view, rule, record);
    // An ACK of the kernel's ends the round in the midst of a burst, and the rest of the burst is the next round's: on
    // a cellular link, after a gap, most of it. Whoever looks for the highest rate of some rounds finds it there.
    const std::uint64_t round_bytes =
        std::min(delivered_bytes, std::max(sent_at_start_, delivered_bytes_) + a.mss_bytes - 1);
    const std::uint64_t all_bytes = std::max<std::uint64_t>(came_bytes(), 1);
    const std::uint64_t own_bytes = round_bytes - std::min(delivered_bytes_, round_bytes);
    const auto own = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(samples * own_bytes / all_bytes, 1, samples));
    a.delivered_bytes = round_bytes;
    const bool ended = heard_of(own, view, rule, record);
    a.delivered_bytes = delivered_bytes;
    reinet_flow_stats none;
    if (samples > own) heard_of(samples - own, view, rule, none);
    return ended;
  }

  // Data goes out with nothing outstanding. Returns whether it was a pause that makes what is known old.
  bool restart(std::uint64_t now_ns) {
    reinet_period_on_restart(&period_, now_ns);
    return period_.restarted != 0;
  }

  const VirtualCubic& window() const { return window_; }
  // What was delivered between the latest two looks.
  std::uint64_t came_bytes() const {
    return newest_delivered_bytes_ - std::min(delivered_bytes_, newest_delivered_bytes_);
  }

 private:
  bool ends_round(const reinet_period_config& rule, std::uint64_t now_ns, std::uint64_t delivered_bytes) const {
    return rule.packet_timed && period_.start_ns != 0 && delivered_bytes > sent_at_start_ &&
           now_ns - period_.start_ns >= rule.min_period_ns;
  }

  // Takes period_.last as so many ACKs, all with its RTT; returns what take() does.
  bool heard_of(std::uint32_t samples, const KernelView& view, const reinet_period_config& rule,
                reinet_flow_stats& record) {
    const std::uint64_t start_ns = period_.start_ns;
    if (start_ns != 0) {  // the first of them is taken below
      const auto rtt_us = static_cast<std::uint32_t>(period_.last.rtt_us);
      period_.rtt_sum_us += static_cast<std::uint64_t>(rtt_us) * (samples - 1);
      if (samples > 1 && (period_.rtt_samples == 0 || rtt_us < period_.rtt_least_us)) period_.rtt_least_us = rtt_us;
      period_.rtt_samples += samples - 1;
    }
    const bool ended = reinet_period_on_last(&period_, &rule, &record) != 0;
    // One byte more: what is acknowledged of a connection that we opened counts its SYN.
    if (period_.start_ns != start_ns) sent_at_start_ = view.sent_bytes() + 1;
    return ended;
  }

  reinet_period period_{};
  VirtualCubic window_;
  bool looked_ = false;
  std::uint32_t segments_ = 0, delivered_pkts_ = 0;
  double srtt_us_ = 0;
  std::uint64_t sent_at_start_ = 0;
  std::uint64_t delivered_bytes_ = 0, newest_delivered_bytes_ = 0;  // before this look, and at it
};

}  // namespace reinet::alcc

#endif
