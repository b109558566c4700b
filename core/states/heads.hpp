// SPDX-License-Identifier: Apache-2.0
// Heads: how a policy's action becomes a cap in packets; and the limits of every cap, whoever chose it.
#ifndef REINET_HEADS_HPP
#define REINET_HEADS_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/states/cap_limits.h"

namespace reinet {

enum class Head { cwnd, bdp, wide };
constexpr std::array<const char*, 3> kHeadNames = {"cwnd", "bdp", "wide"};
// The gain of the bdp head, whose action 0 is the hand rule, and of the rule where none is named. It gives 27 ms at
// 99.3 % utilisation where Cubic has 151 ms (ATT-LTE-driving).
constexpr double kRuleGain = 1.5;
// The wide head, cap = 1.3 x 4^a x the rule's product: whoever decides several times in a round trip can go far below
// the product while an outage lasts, and far above it when the link has become faster than ever seen. At action 0 it is
// the rule's setting of about 95 % utilisation.
constexpr double kWideGain = 1.3;
constexpr std::uint32_t kMinCapPkts = REINET_MIN_CAP_PKTS;
constexpr std::uint32_t kMaxCapPkts = 40000;  // the paper's: 480 Mbit/s at an RTT of 1 s

// An agent returns this for a flow for which it computed no number at all (NaN or infinity).
constexpr std::uint32_t kInvalidCapPkts = ~0U;

// Returns whole packets within the limits, halves rounded to the even one; 0 = no cap, for what is no number.
inline std::uint32_t round_cap_pkts(double pkts, std::uint32_t ceiling_pkts) {
  if (std::isnan(pkts)) return 0;
  const double highest = std::max(ceiling_pkts, kMinCapPkts);
  return static_cast<std::uint32_t>(std::clamp(std::nearbyint(pkts), static_cast<double>(kMinCapPkts), highest));
}

// Returns the cap in packets, 0 = none: for an action that is no number, and, but for cwnd, before any rate is known.
inline std::uint32_t cap_from_action(Head head, float action, std::uint32_t cwnd_pkts, float rule_pkts,
                                     std::uint32_t ceiling_pkts) {
  if (!std::isfinite(action) || !std::isfinite(rule_pkts)) return 0;
  if (head != Head::cwnd && rule_pkts <= 0.0F) return 0;
  const double a = std::clamp(static_cast<double>(action), -1.0, 1.0);
  switch (head) {
    case Head::cwnd:
      return round_cap_pkts(std::exp2(a) * cwnd_pkts, ceiling_pkts);
    case Head::bdp:
      return round_cap_pkts(std::exp2(a) * (kRuleGain * rule_pkts), ceiling_pkts);
    case Head::wide:
      return round_cap_pkts(std::exp2(2.0 * a) * (kWideGain * rule_pkts), ceiling_pkts);
  }
  return 0;
}

// Returns the action in [-1, 1] that comes nearest to a cap: what cap_from_action undoes, but for limits and rounding.
inline float action_from_cap(Head head, std::uint32_t cap_pkts, std::uint32_t cwnd_pkts, float rule_pkts) {
  const double reference = head == Head::cwnd  ? cwnd_pkts
                           : head == Head::bdp ? kRuleGain * rule_pkts
                                               : kWideGain * rule_pkts;
  if (cap_pkts == 0 || !(reference > 0.0)) return 1.0F;  // no cap
  const double octaves = std::log2(cap_pkts / reference) / (head == Head::wide ? 2.0 : 1.0);
  return static_cast<float>(std::clamp(octaves, -1.0, 1.0));
}

}  // namespace reinet

#endif
