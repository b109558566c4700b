// SPDX-License-Identifier: Apache-2.0
// What feature sets are made of: a feature's row in its table, which records count, and the peak of a delivery rate.
#ifndef REINET_FEATURE_HPP
#define REINET_FEATURE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/flow_stats.h"

namespace reinet {

struct Feature {
  const char* name;
  const char* unit;
  float low, high;  // values are clipped to them
  const char* formula;
};

// Returns false for a record that says nothing new of the path: it asks for no decision.
inline bool has_sample(const reinet_flow_stats& s) {
  return !(s.flags & (REINET_FLAG_NO_SAMPLE | REINET_FLAG_CLOSED)) && s.rtt_samples > 0;
}

// Returns for how many round trips the record's period lasted.
inline double rounds_of(const reinet_flow_stats& s) {
  return std::max(static_cast<double>(s.period_ns), 1.0) / (1000.0 * std::max(s.srtt_us, 1U));
}

// Returns how many packets were in flight in the period: of few, sent together, none are at its last ACK.
inline double flew_pkts(const reinet_flow_stats& s) {
  return std::max(1.0 * s.inflight_pkts, static_cast<double>(s.delivered_bytes) / std::max(s.mss_bytes, 1U));
}

// Returns the weight of a record that lasted for passed_rounds in a running mean over the latest mean_rounds round
// trips. rounds: for how many the mean has run, this record's included; until they are mean_rounds all count alike.
inline double weight_in_mean(double passed_rounds, double rounds, double mean_rounds) {
  return std::min(passed_rounds / std::min(rounds, mean_rounds), 1.0);
}

// What is known of flows by slot; a slot whose flow is another one begins anew.
template <class Known>
class BySlot {
 public:
  Known& of(const reinet_flow_stats& s) {
    if (s.slot >= flows_.size()) flows_.resize(s.slot + std::size_t{1});
    Named& flow = flows_[s.slot];
    if (flow.cookie != s.cookie) flow = {s.cookie, {}};
    return flow.known;
  }
  void forget(std::size_t slot, std::uint64_t cookie) {
    if (slot < flows_.size() && flows_[slot].cookie == cookie) flows_[slot] = {};
  }

 private:
  struct Named {
    std::uint64_t cookie = 0;
    Known known;
  };
  std::vector<Named> flows_;
};

// Waits below it are the clocks' own: they tick in milliseconds, and part by 3 ms in the minute that a wait is told by.
constexpr std::uint64_t kLeastAckWaitUs = 4000;

// Returns the record as seen from a path that is longer by what ACKs wait on their way back. That wait is no queue of
// the flow's own and no cap shortens it: for the rate that the link has, as many packets more are to be in flight.
inline reinet_flow_stats without_ack_wait(const reinet_flow_stats& record) {
  reinet_flow_stats s = record;
  if (!has_sample(s) || s.ack_wait_us < kLeastAckWaitUs || s.rtt_mean_us <= s.min_rtt_us) return s;
  const auto wait_us = static_cast<std::uint32_t>(std::min<std::uint64_t>(s.ack_wait_us, s.rtt_mean_us - s.min_rtt_us));
  s.min_rtt_us += wait_us;
  if (s.target_us != 0) s.target_us += std::min(wait_us, ~s.target_us);
  return s;
}

// Returns the record of a flow beside others to the same peer as if all of them took their turns evenly
// (core/peers/peers.hpp).
inline reinet_flow_stats by_share(const reinet_flow_stats& record) {
  reinet_flow_stats s = record;
  if (!(s.flags & REINET_FLAG_COMPANY) || s.share_bytes == 0 || s.period_ns == 0) return s;
  s.delivered_bytes = s.share_bytes;
  s.delivery_rate_bytes_per_s = s.share_bytes * 1'000'000'000 / s.period_ns;
  return s;
}

// Returns the hand rule's product, a rate's packets in the minimum RTT; 0 where the packet size is not known.
inline float rule_product_pkts(double rate_bytes_per_s, const reinet_flow_stats& s) {
  return s.mss_bytes ? static_cast<float>(rate_bytes_per_s * s.min_rtt_us * 1e-6 / s.mss_bytes) : 0.0F;
}

// The largest rate of a window in time.
class PeakRate {
 public:
  // Takes a record's rate and returns the exact maximum of the window: peaks_ are the rates that no later one exceeds,
  // in order of time, so the first is the largest. The record before always counts, so that an outage, one long period,
  // does not wipe out what the link could do. A rate that the application limited may raise the estimate and never
  // lowers it (bbr_update_bw of net/ipv4/tcp_bbr.c): while it does, nothing grows old.
  double update(const reinet_flow_stats& s, double rate, std::uint64_t window_ns) {
    if ((s.flags & REINET_FLAG_APP_LIMITED) && !peaks_.empty() && peaks_.front().rate > rate)
      return peaks_.front().rate;
    while (!peaks_.empty() && peaks_.back().rate <= rate) peaks_.pop_back();
    peaks_.push_back({s.time_ns, rate});
    const auto is_recent = [&](const Peak& p) {
      const std::uint64_t age_ns = s.time_ns - std::min(p.ended_ns, s.time_ns);
      return age_ns <= window_ns || age_ns - window_ns <= s.period_ns;
    };
    peaks_.erase(peaks_.begin(), std::find_if(peaks_.begin(), peaks_.end(), is_recent));
    return peaks_.front().rate;
  }

  std::size_t heap_bytes() const { return peaks_.capacity() * sizeof(Peak); }

 private:
  struct Peak {
    std::uint64_t ended_ns;
    double rate;
  };
  std::vector<Peak> peaks_;
};

}  // namespace reinet

#endif
