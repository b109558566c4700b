// SPDX-License-Identifier: Apache-2.0
//
// Records made of TCP_INFO, which is read by a timer and not at each ACK. The rule of core/period.h is the same; what
// an ACK shows elsewhere is told here from two looks at the connection:
//
//   RTT samples   TCP_INFO has none, only their smoothed value s' = 7/8 s + 1/8 sample, moved once for each ACK. With k
//                 segments come in since the last look and q = (7/8)^k, their mean is (s' - q s) / (1 - q).
//   delivered     bytes acknowledged and SACKed; never delivery_rate, which the gate contaminates.
//   round trips   a round ends when more has been delivered than had been sent when it began, mostly between two looks.
//                 It ends at the nearer one, and the next begins there: what had been delivered and sent by then, and
//                 when that was, are known together.
//   lost          there is no lifetime count: retransmitted bytes stand in for it.
#ifndef REINET_ALCC_MEASURE_HPP
#define REINET_ALCC_MEASURE_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "alcc/stats/kernel_view.hpp"
#include "alcc/stats/virtual_cubic.hpp"
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
    // One byte more: what is acknowledged of a connection that we opened counts its SYN.
    before_ = look_;
    look_ = {now_ns, view.delivered_bytes(), view.sent_bytes() + 1, i.tcpi_segs_in, i.tcpi_delivered, i.tcpi_rtt};
    const std::uint32_t segments = look_.segments - before_.segments;
    const std::uint32_t delivered_pkts = look_.delivered_pkts - before_.delivered_pkts;
    if (before_.time_ns == 0) return false;
    const std::uint32_t acks = std::min(segments, delivered_pkts);
    const bool told = acks > 0 ? hear(view, acks, rule, app_limited, cap_pkts, record)
                               : reinet_period_on_tick(&period_, now_ns, view.outstanding(), &record) != 0;
    if (told) told_ns_ = record.time_ns;
    return told;
  }

  // Data goes out with nothing outstanding. Returns whether it was a pause that makes what is known old.
  bool restart(std::uint64_t now_ns) {
    reinet_period_on_restart(&period_, now_ns);
    if (look_.time_ns != 0) look_.time_ns = now_ns;  // a look would show what the latest one did
    return period_.restarted != 0;
  }

  // What was delivered between the latest two looks.
  std::uint64_t came_bytes() const { return reinet_growth(look_.delivered_bytes, before_.delivered_bytes); }

 private:
  struct Look {
    std::uint64_t time_ns = 0;  // 0 = there was none
    std::uint64_t delivered_bytes = 0, sent_bytes = 0;
    std::uint32_t segments = 0, delivered_pkts = 0, srtt_us = 0;
  };

  bool hear(const KernelView& view, std::uint32_t acks, const reinet_period_config& rule, bool app_limited,
            std::uint32_t cap_pkts, reinet_flow_stats& record) {
    const tcp_info& i = view.info;
    const double mean_us = mean_of_samples_us(before_.srtt_us, i.tcpi_rtt, acks);
    // The smoothed RTT comes in whole microseconds: what rounding takes below the least ever seen is put back.
    const bool known = i.tcpi_min_rtt != 0 && i.tcpi_min_rtt != ~0U;
    const auto rtt_us = static_cast<std::int32_t>(std::clamp(mean_us, known ? i.tcpi_min_rtt : 1.0, 1e9));
    const Heard heard{before_.time_ns / 1000, look_.time_ns / 1000, rtt_us, acks,
                      look_.delivered_pkts - before_.delivered_pkts};
    window_.on_look(view, heard, !app_limited, cap_pkts);
    const bool over = rule.packet_timed && period_.start_ns != 0 && look_.delivered_bytes > sent_at_start_;
    const bool ended_before = over && is_nearer_before(acks) && end_before(rule, record);
    const std::uint64_t began_ns = period_.start_ns;
    reinet_ack& a = period_.last;
    a.time_ns = look_.time_ns;
    a.newest_acked_sent_ns = over && !ended_before ? look_.time_ns : 0;
    a.delivered_bytes = look_.delivered_bytes;
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
    if (began_ns != 0) count_alike(acks - 1);  // the last of them, or the first of all, is taken here
    reinet_flow_stats none;
    const bool ended = reinet_period_on_last(&period_, &rule, ended_before ? &none : &record) != 0;
    if (ended_before) sent_at_start_ = before_.sent_bytes;
    if (period_.start_ns != began_ns) sent_at_start_ = look_.sent_bytes;
    return ended || ended_before;
  }

  // Tells whether the ACK that ended the round came nearer to the look before, if all came evenly.
  bool is_nearer_before(std::uint32_t acks) const {
    const std::uint64_t rest_bytes = reinet_growth(sent_at_start_, before_.delivered_bytes);
    const std::uint64_t rest_acks = rest_bytes * acks / std::max<std::uint64_t>(came_bytes(), 1);
    return 2 * rest_acks + 1 < acks;
  }

  // Ends the period at the look before, without what came since. On a cellular link that is a burst after a gap, of
  // which the kernel counts all but the first ACK to the next round too; whoever goes by the highest rate of some
  // rounds finds it there. Returns false where nothing had come by then, or where a silence was told of at that time.
  bool end_before(const reinet_period_config& rule, reinet_flow_stats& record) {
    if (before_.delivered_bytes <= period_.delivered_bytes || before_.time_ns <= told_ns_) return false;
    period_.last.time_ns = period_.last.newest_acked_sent_ns = before_.time_ns;
    period_.last.rtt_us = -1;
    return reinet_period_on_last(&period_, &rule, &record) != 0;
  }

  // Counts so many samples that are as the latest one.
  void count_alike(std::uint32_t samples) {
    if (samples == 0) return;
    const auto rtt_us = static_cast<std::uint32_t>(period_.last.rtt_us);
    if (period_.rtt_samples == 0 || rtt_us < period_.rtt_least_us) period_.rtt_least_us = rtt_us;
    period_.rtt_sum_us += static_cast<std::uint64_t>(rtt_us) * samples;
    period_.rtt_samples += samples;
  }

  reinet_period period_{};
  VirtualCubic window_;
  Look before_, look_;  // the latest two
  std::uint64_t sent_at_start_ = 0;
  std::uint64_t told_ns_ = 0;  // the time of the latest record
};

}  // namespace reinet::alcc

#endif
