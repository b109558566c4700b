// SPDX-License-Identifier: Apache-2.0
//
// What a policy may see: the table of feature sets. Python's view, the environment's documentation and the schema hash
// follow from it. A set is a struct of one flow's memory: update() makes an observation of a record that has an RTT
// sample, and leaves the hand rule's product in rule_pkts. Formulas are text for people and for the hash: who changes
// what update() computes changes them too, or raises the version.
#ifndef REINET_FEATURE_SETS_HPP
#define REINET_FEATURE_SETS_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/flow_stats.h"
#include "core/states/deepcc.hpp"
#include "core/states/delay_ratio.hpp"
#include "core/states/feature.hpp"
#include "core/states/normaliser.hpp"
#include "core/states/timescales.hpp"

namespace reinet {

// The largest delivery rate of the latest periods: what both of DeepCC's sets take the rule's product from.
class LatestRates {
 public:
  float rule_pkts(const reinet_flow_stats& s) {
    rates_[periods_++ % kRulePeriods] = s.delivery_rate_bytes_per_s;
    return rule_product_pkts(static_cast<double>(*std::max_element(rates_.begin(), rates_.end())), s);
  }

 private:
  static constexpr std::size_t kRulePeriods = 10;

  std::uint32_t periods_ = 0;
  std::array<std::uint64_t, kRulePeriods> rates_{};
};

// What DeepCC's sets have in common. They are one reward's, too: it takes the statistics of kInputs.
struct OfDeepCc {
  static constexpr int kVersion = 1;
  static constexpr std::size_t kHistory = 20;
  static constexpr auto kInputs = kDeepCcInputs;
  static constexpr const char* kRule = "max delivery rate of the last 10 periods x min RTT / mss";
  static auto inputs_of(const reinet_flow_stats& s) { return deepcc_inputs(s); }

  float rule_pkts = 0.0F;

  std::size_t heap_bytes() const { return 0; }

 protected:
  DeepCcQuantities take(const reinet_flow_stats& s, const Normaliser& normalise) {
    rule_pkts = rates_.rule_pkts(s);
    return memory_.update(s, normalise);
  }

 private:
  DeepCcMemory memory_;
  LatestRates rates_;
};

// ---- deepcc-5x20: the state of the DeepCC paper

struct DeepCcSet : OfDeepCc {
  static constexpr const char* kName = "deepcc-5x20";
  static constexpr const char* kTerms =
      "x~ is x less the smallest value seen in training, in standard deviations; delay = mean RTT - min RTT + 21 ms, "
      "rho = delay~ / (target - min RTT + 21 ms)~, both with the delay's statistics, k = 1 while the mean of the two "
      "latest rho, weighted by their samples, is at most 1, else 0";
  static constexpr std::array<Feature, 5> kFeatures = {{
      {"excess_delay", "ratio", 0.0F, kDeepCcLimit, "rho (1 - k)"},
      {"delay_headroom", "ratio", 1.0F - kDeepCcLimit, 1.0F, "(1 - rho) k"},
      {"samples", "sd", 0.0F, kDeepCcLimit, "k x RTT samples~"},
      {"rate", "sd", 0.0F, kDeepCcLimit, "k x delivery rate~"},
      {"cwnd", "sd", 0.0F, kDeepCcLimit, "cwnd~"},
  }};

  std::array<double, kFeatures.size()> update(const reinet_flow_stats& s, const Normaliser& normalise) {
    const DeepCcQuantities q = take(s, normalise);
    if (q.on_target) return {0.0, 1.0 - q.rho, q.samples, q.rate, q.cwnd};
    return {q.rho, 0.0, 0.0, 0.0, q.cwnd};
  }
};

// ---- deepcc-5x1: the same without history; deepcc-4x20: without the filter kernel. To measure what each brings.

struct DeepCcLatestSet : DeepCcSet {
  static constexpr const char* kName = "deepcc-5x1";
  static constexpr std::size_t kHistory = 1;
};

struct DeepCcUnfilteredSet : OfDeepCc {
  static constexpr const char* kName = "deepcc-4x20";
  static constexpr const char* kTerms =
      "x~ is x less the smallest value seen in training, in standard deviations; delay = mean RTT - min RTT + 21 ms, "
      "rho = delay~ / (target - min RTT + 21 ms)~, both with the delay's statistics";
  static constexpr std::array<Feature, 4> kFeatures = {{
      {"delay", "ratio", 0.0F, kDeepCcLimit, "rho"},
      {"samples", "sd", 0.0F, kDeepCcLimit, "RTT samples~"},
      {"rate", "sd", 0.0F, kDeepCcLimit, "delivery rate~"},
      {"cwnd", "sd", 0.0F, kDeepCcLimit, "cwnd~"},
  }};

  std::array<double, kFeatures.size()> update(const reinet_flow_stats& s, const Normaliser& normalise) {
    const DeepCcQuantities q = take(s, normalise);
    return {q.rho, q.samples, q.rate, q.cwnd};
  }
};

// ---- scalefree-5x20: ratios and logarithms, which mean the same on every path and need no statistics

struct ScaleFreeSet {
  static constexpr const char* kName = "scalefree-5x20";
  static constexpr int kVersion = 1;
  static constexpr std::size_t kHistory = 20;
  static constexpr const char* kTerms =
      "rho = (mean RTT - min RTT) / max(target - min RTT, 0.1 x min RTT); rate = bytes delivered / time over the "
      "fewest latest records that together last 20 ms; peak = the largest rate at records that ended at most 240 ms "
      "before the latest period began, itself included; rule = peak x min RTT / mss; log is the natural one";
  static constexpr std::array<Feature, 5> kFeatures = {{
      {"delay", "log", 0.0F, 4.0F, "log(1 + 4 rho) / log 5"},      // 4: 156 times what the target allows
      {"rate", "ratio", 0.0F, 1.0F, "rate / peak"},                // peak includes rate
      {"in_flight", "log", -4.0F, 4.0F, "log(in flight / rule)"},  // 4: a factor of 55
      {"period", "log", -4.0F, 4.0F, "log(period / min RTT)"},
      {"rule", "log", -4.0F, 11.0F, "log(rule)"},  // 11: 60 000 packets, above the highest cap
  }};
  static constexpr std::array<Input, 0> kInputs = {};
  static constexpr const char* kRule = "peak x min RTT / mss";
  static std::array<double, 0> inputs_of(const reinet_flow_stats&) { return {}; }

  float rule_pkts = 0.0F;

  std::array<double, kFeatures.size()> update(const reinet_flow_stats& s, const Normaliser&) {
    const double rate = latest_rate(s);
    const double peak = peaks_.update(s, rate, kPeakWindowNs);
    rule_pkts = rule_product_pkts(peak, s);
    return {clipped<0>(delay_cost(delay_ratio(s))), peak > 0.0 ? rate / peak : 0.0,
            clipped_log<2>(s.inflight_pkts / static_cast<double>(rule_pkts)),
            clipped_log<3>(static_cast<double>(s.period_ns) / (s.min_rtt_us * 1e3)), clipped_log<4>(rule_pkts)};
  }

  std::size_t heap_bytes() const { return latest_.capacity() * sizeof(Span) + peaks_.heap_bytes(); }

 private:
  static constexpr std::uint64_t kRateWindowNs = 20'000'000;   // shorter times hold too few packets of a slow link
  static constexpr std::uint64_t kPeakWindowNs = 240'000'000;  // some ten round trips of a usual path
  struct Span {
    std::uint64_t ns, bytes;
  };

  double latest_rate(const reinet_flow_stats& s) {
    latest_.push_back({s.period_ns, s.delivered_bytes});
    latest_sum_.ns += s.period_ns;
    latest_sum_.bytes += s.delivered_bytes;
    std::size_t old = 0;
    for (; latest_sum_.ns - latest_[old].ns >= kRateWindowNs; ++old) {
      latest_sum_.ns -= latest_[old].ns;
      latest_sum_.bytes -= latest_[old].bytes;
    }
    latest_.erase(latest_.begin(), latest_.begin() + static_cast<std::ptrdiff_t>(old));
    return latest_sum_.ns ? static_cast<double>(latest_sum_.bytes) * 1e9 / static_cast<double>(latest_sum_.ns) : 0.0;
  }

  template <std::size_t feature>
  static double clipped(double x) {
    return std::clamp<double>(x, kFeatures[feature].low, kFeatures[feature].high);
  }
  template <std::size_t feature>
  static double clipped_log(double x) {
    return x > 0.0 ? clipped<feature>(std::log(x)) : kFeatures[feature].low;  // also for 0 / 0
  }

  std::vector<Span> latest_;  // records that together last kRateWindowNs
  Span latest_sum_{0, 0};
  PeakRate peaks_;
};

// ---- timescales-24x20: the same 24 with a history, for networks that look for more in it than the windows say

struct TimescaleHistorySet : TimescaleSet {
  static constexpr const char* kName = "timescales-24x20";
  static constexpr std::size_t kHistory = 20;
};

// ---- the table

template <class... Sets>
struct FeatureSetList {};
// A model names its set; the first is what is used where none is named.
using FeatureSets =
    FeatureSetList<DeepCcSet, ScaleFreeSet, TimescaleSet, DeepCcLatestSet, DeepCcUnfilteredSet, TimescaleHistorySet>;

}  // namespace reinet

#endif
