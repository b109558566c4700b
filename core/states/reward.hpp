// SPDX-License-Identifier: Apache-2.0
//
// Rewards, by name; one implementation for both environments and for training. Each record of a flow earns one.
//
//   deepcc   the paper's equation 3, of the quantities of deepcc.hpp: min(n~ thr~ rho, 100), negated if rho_bar > 1; 0
//            for a record without an RTT sample. It peaks just below the target, so delay stays near it even where half
//            would cost nothing, and its scale follows the link's rate.
//
//   regret   with C the bytes of the link's opportunities since the record before, D the delivered ones (both with
//            headers, C seen half a base RTT earlier, when the acknowledged bytes left the bottleneck), rho the share
//            of the allowed queueing delay (delay_ratio.hpp) and w = delay_weight:
//
//              r = -[(C - D) + w D log(1 + 4 rho) / log 5] / U        U = mean capacity x 20 ms, at least a packet
//
//            summed from one record with an RTT sample to the next, and the sum kept within [-10, 10]. Capacity left
//            unused and delay are both losses, in units of what the link carries in one of the paper's periods; summed
//            over a flow they are the same whatever the link's rate. At a queue as long as the target allows the delay
//            costs w; the logarithm asks for less delay also where there is little, and gives up less throughput where
//            an outage makes a long queue anyway. C does not depend on the action and only takes the link's luck out of
//            the sum. It is known of simulated and emulated links alone: the reward uses it, the state does not.
//            0 for a flow's first record, before which nothing was decided, and for the one that says it is closed.
//
//   regret-linear   regret with w D rho in place of the logarithm: summed over a flow, the mean queueing delay itself,
//            which is what flows are judged by. Outages then weigh heavily: whether a learner copes is a question of
//            its critic.
#ifndef REINET_REWARD_HPP
#define REINET_REWARD_HPP

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "core/flow_stats.h"
#include "core/states/deepcc.hpp"
#include "core/states/delay_ratio.hpp"
#include "core/states/normaliser.hpp"
#include "core/wire.hpp"

namespace reinet {

enum class RewardKind { deepcc, regret, regret_linear };
constexpr std::array<const char*, 3> kRewardNames = {"deepcc", "regret", "regret-linear"};

// regret's w: the share of throughput worth giving up for an empty queue in place of one as long as the target allows.
constexpr double kDelayWeight = 0.25;

// What the link has offered, for a reward that compares with it.
struct Offer {
  double bytes = 0.0;       // of all opportunities so far, from any fixed time on
  double unit_bytes = 1.0;  // see regret_unit_bytes
};

struct RewardConfig {
  RewardKind kind;
  double delay_weight;
  Normaliser deepcc;  // of the paper's inputs
};

class DeepCcReward {
 public:
  double take(const reinet_flow_stats& s, const RewardConfig& config, const Offer&) {
    if (!has_sample(s)) return 0.0;
    const DeepCcQuantities q = memory_.update(s, config.deepcc);
    const double gain = std::min(q.samples * q.rate * q.rho, kMost);
    return q.on_target ? gain : -gain;
  }

 private:
  static constexpr double kMost = 100.0;  // the paper's

  DeepCcMemory memory_;
};

// Bytes that a record is the first to tell of. A record of a silence tells of all since the period's start and does not
// end the period, so the records that follow tell of the same bytes again.
class NewlyDelivered {
 public:
  std::uint64_t take(const reinet_flow_stats& s) {
    const std::uint64_t before = std::exchange(told_bytes_, s.flags & REINET_FLAG_SILENCE ? s.delivered_bytes : 0);
    return s.delivered_bytes > before ? s.delivered_bytes - before : 0;
  }

 private:
  std::uint64_t told_bytes_ = 0;  // by the record before, if it was a silence's
};

// Returns what the mean capacity of a trace that loops brings in one of the paper's periods, a packet at least.
constexpr double kRegretPeriodMs = 20.0;
inline double regret_unit_bytes(std::uint64_t opportunities, std::uint64_t loop_ms) {
  const double per_ms = static_cast<double>(opportunities) / static_cast<double>(loop_ms);
  return std::max(kOpportunityBytes * per_ms * kRegretPeriodMs, static_cast<double>(kOpportunityBytes));
}

template <bool linear>
class RegretReward {
 public:
  double take(const reinet_flow_stats& s, const RewardConfig& config, const Offer& offer) {
    if (s.flags & REINET_FLAG_CLOSED) return 0.0;
    const double mss_bytes = std::max(s.mss_bytes, 1U);
    const double delivered = static_cast<double>(delivered_.take(s)) * (mss_bytes + kHeaderBytes) / mss_bytes;
    const double offered = offer.bytes - offered_bytes_;
    offered_bytes_ = offer.bytes;
    if (!started_) {
      started_ = true;
      return 0.0;
    }
    const double rho = delay_ratio(s);
    const double cost = linear ? std::max(rho, 0.0) : delay_cost(rho);
    const double delay = config.delay_weight * delivered * cost;
    const double before = limited(since_decision_);
    since_decision_ -= (offered - delivered + delay) / offer.unit_bytes;
    const double earned = limited(since_decision_) - before;
    if (has_sample(s)) since_decision_ = 0.0;
    return earned;
  }

 private:
  // The limit of the sum from one decision to the next: a retransmission timeout after an outage leaves seconds of
  // capacity unused, and would outweigh all.
  static constexpr double kMost = 10.0;
  static double limited(double sum) { return std::clamp(sum, -kMost, kMost); }

  NewlyDelivered delivered_;
  double offered_bytes_ = 0.0;
  double since_decision_ = 0.0;  // not limited
  bool started_ = false;
};

}  // namespace reinet

#endif
