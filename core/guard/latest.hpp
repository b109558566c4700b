// SPDX-License-Identifier: Apache-2.0
// What the latest round trips of a flow were like, as what asks about its queue compares them.
#ifndef REINET_LATEST_HPP
#define REINET_LATEST_HPP

#include "core/flow_stats.h"
#include "core/states/feature.hpp"

namespace reinet {

constexpr double kLatestRounds = 8;
// In one round trip a window follows a new cap, in the next the ACKs of what it then sent come.
constexpr double kFillRounds = 2;

// Means over about kLatestRounds.
struct Latest {
  double rounds = 0, cap_pkts = 0, wait_us = 0, bytes_per_round = 0, rounds_ns = 0;
  void add(const reinet_flow_stats& s, double passed_rounds) {
    rounds += passed_rounds;
    const double weight = weight_in_mean(passed_rounds, rounds, kLatestRounds);
    cap_pkts += weight * (s.cap_pkts - cap_pkts);
    wait_us += weight * (s.rtt_mean_us - 1.0 * s.min_rtt_us - wait_us);
    bytes_per_round += weight * (s.delivered_bytes / passed_rounds - bytes_per_round);
    rounds_ns += weight * (s.period_ns / passed_rounds - rounds_ns);
  }
  double bytes_per_ns() const { return bytes_per_round / rounds_ns; }
};

}  // namespace reinet

#endif
