// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_SNAPSHOT_HPP
#define REINET_SNAPSHOT_HPP

#include <cstdint>

#include "core/cc/congestion_control.hpp"
#include "core/cc/pacer.hpp"
#include "core/cc/rtt.hpp"
#include "core/flow_stats.h"
#include "core/period.h"
#include "envs/sim/tcp/scoreboard.hpp"

namespace reinet {

// Writes what an ACK tells, all but that recovery is under way. rtt_us: negative = no sample.
template <class Control>
void tell(reinet_ack& a, Us now_us, std::int32_t rtt_us, std::uint32_t mss_bytes, std::uint64_t retransmitted_pkts,
          const Control& control, const Window& window, const Scoreboard& board, const RttEstimator& rtt) {
  a.time_ns = now_us * 1000;
  a.newest_acked_sent_ns = board.newest_delivered_sent_us() * 1000;
  a.delivered_bytes = board.delivered_total_pkts() * mss_bytes;
  a.lost_bytes = board.lost_total_pkts() * mss_bytes;
  a.retrans_bytes = retransmitted_pkts * mss_bytes;
  if constexpr (Paced<Control>)
    a.pacing_rate_bytes_per_s = static_cast<std::uint64_t>(control.pacing_bytes_per_s());
  else
    a.pacing_rate_bytes_per_s =
        static_cast<std::uint64_t>(Pacer::reported_bytes_per_s(window, board.out_pkts(), mss_bytes, rtt.srtt_us()));
  a.rtt_us = rtt_us;
  a.srtt_us = rtt.srtt_us();
  a.min_rtt_us = rtt.min_us();
  a.cwnd_pkts = window.cwnd_pkts;
  a.ssthresh_pkts = window.ssthresh_pkts;
  a.inflight_pkts = board.in_flight_pkts();
  a.mss_bytes = mss_bytes;
  a.flags =
      REINET_FLAG_APP_LIMITED * (window.app_limited_until_pkts > 0) | REINET_FLAG_SLOW_START * window.slow_start();
}

}  // namespace reinet

#endif
