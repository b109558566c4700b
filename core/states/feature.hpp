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
