// SPDX-License-Identifier: Apache-2.0
// Calm: a cap follows the network's wish within round trips of the path, not from one decision to the next.
//
// With a decision every 5 ms a path of 100 ms has twenty of them in a round trip. The network's wishes scatter from one
// to the next, and each low one costs more than the high one after it can mend: what is in flight above a cap stops the
// sender, and from a cap the window comes back only as slow start lets it, by twice in a round trip. So the longer the
// path, the slower the cap moves; on one of 20 ms it hardly lags (measured in docs/training-options.md).
//
// It has no memory of its own: the cap in force is in each record, and that is a whole number of packets. So that small
// steps add up, the fraction is rounded up as often as it says, by a number that the record's time gives: the same for
// the same record.
#ifndef REINET_CALM_HPP
#define REINET_CALM_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/states/heads.hpp"

namespace reinet {

// A cap that follows its network more slowly than in ten round trips is no answer to anything.
constexpr double kMostCalmRtts = 10.0;

// Returns a number in [0, 1); those of many times are evenly spread. The factor is Knuth's multiplicative hash, 2^32
// over the golden ratio: neighbouring times give numbers that lie far apart.
inline double fraction_of(std::uint64_t time_ns) {
  return static_cast<double>(static_cast<std::uint32_t>(time_ns / 1000 * 2'654'435'761U)) / 4'294'967'296.0;
}

// Returns the cap in packets on its way from the one in force to what is wanted, 1 - 1 / e of it in so many minimum
// RTTs. The way is measured in logarithms: half and twice are equally far. A flow without a cap in force, one for which
// none is wanted (0) and any where calm_rtts is 0 get what is wanted.
inline std::uint32_t calm_cap_pkts(std::uint32_t wanted_pkts, const reinet_flow_stats& s, double calm_rtts,
                                   std::uint32_t ceiling_pkts) {
  if (wanted_pkts == 0 || s.cap_pkts == 0 || !(calm_rtts > 0.0)) return wanted_pkts;
  const double period_rtts = s.period_ns / 1e3 / std::max(s.min_rtt_us, 1U);
  const double stays = std::exp(-period_rtts / calm_rtts);
  const double pkts = std::exp(stays * std::log(s.cap_pkts) + (1.0 - stays) * std::log(wanted_pkts));
  const double highest = std::max(ceiling_pkts, kMinCapPkts);
  return static_cast<std::uint32_t>(
      std::clamp(std::floor(pkts + fraction_of(s.time_ns)), static_cast<double>(kMinCapPkts), highest));
}

// Returns what a learned policy wants of a flow: its network's action through the head, calmly; kInvalidCapPkts where
// the network gave no number.
inline std::uint32_t learned_cap_pkts(Head head, float action, const reinet_flow_stats& s, float rule_pkts,
                                      double calm_rtts, std::uint32_t ceiling_pkts) {
  if (!std::isfinite(action)) return kInvalidCapPkts;
  return calm_cap_pkts(cap_from_action(head, action, s.cwnd_pkts, rule_pkts, ceiling_pkts), s, calm_rtts, ceiling_pkts);
}

}  // namespace reinet

#endif
