// SPDX-License-Identifier: Apache-2.0
//
// State, reward and heads: how FlowStats records become what a policy sees, and how its action becomes a cap. The only
// implementation; simulator, kernel environment and daemon all call it. DeepCC's equations 1-4; S1 to S9 are the
// deviations of docs/deviations.md.
//
//   inputs   d' = mean RTT - min RTT + 21 ms, n samples, delivery rate, cwnd     T' = target - min RTT + 21 ms
//   x~       = (x - smallest x seen) / standard deviation of x  (S2)             T~ uses the statistics of d'
//   rho      = d~ / T~, rho_bar = mean of the two latest rho weighted by n, k = 1 if rho_bar <= 1 else 0
//   o        = [rho (1 - k), (1 - rho) k, k n~, k thr~, cwnd~]; the state is the latest 20, newest first
//   reward   = min(n~ thr~ rho, 100), negated if rho_bar > 1
//   rule     = max delivery rate of the last 10 periods x min RTT / mss, in packets
#ifndef REINET_STATE_HPP
#define REINET_STATE_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/flow_stats.h"

namespace reinet {

// ---- inputs and their statistics

enum Input : std::size_t { kDelay, kSamples, kRate, kCwnd, kInputs };
constexpr std::array<const char*, kInputs> kInputNames = {"delay_ms", "samples", "rate_bytes_per_s", "cwnd_pkts"};

// Delays are moved to a path of this minimum RTT, DeepCC's own, so that one policy serves paths of any base RTT.
constexpr double kReferenceMinRttMs = 21.0;

inline double rebased_ms(std::uint32_t delay_us, std::uint32_t min_rtt_us) {
  return (static_cast<double>(delay_us) - static_cast<double>(min_rtt_us)) / 1000.0 + kReferenceMinRttMs;
}

inline std::array<double, kInputs> inputs_of(const reinet_flow_stats& s) {
  return {rebased_ms(s.rtt_mean_us, s.min_rtt_us), static_cast<double>(s.rtt_samples),
          static_cast<double>(s.delivery_rate_bytes_per_s), static_cast<double>(s.cwnd_pkts)};
}

inline bool has_sample(const reinet_flow_stats& s) {
  return !(s.flags & (REINET_FLAG_NO_SAMPLE | REINET_FLAG_CLOSED)) && s.rtt_samples > 0;
}

// Running statistics of one input (Welford), plain doubles so that a NumPy row is one.
struct InputStatistics {
  double count, mean, m2, minimum;

  void add(double x) {
    minimum = count > 0 ? std::min(minimum, x) : x;
    count += 1;
    const double before = x - mean;
    mean += before / count;
    m2 += before * (x - mean);
  }

  // Chan et al.: as if the other's values had been added here.
  void merge(const InputStatistics& other) {
    if (other.count <= 0) return;
    minimum = count > 0 ? std::min(minimum, other.minimum) : other.minimum;
    const double total = count + other.count;
    const double apart = other.mean - mean;
    mean += apart * other.count / total;
    m2 += other.m2 + apart * apart * count * other.count / total;
    count = total;
  }
};
using NormaliserTable = std::array<InputStatistics, kInputs>;

inline void observe(NormaliserTable& table, const reinet_flow_stats& s) {
  if (!has_sample(s)) return;
  const auto x = inputs_of(s);
  for (std::size_t i = 0; i < kInputs; ++i) table[i].add(x[i]);
}

// The table frozen into what the state needs: x~ = (x - minimum) x inverse_sd.
class Normaliser {
 public:
  explicit Normaliser(const NormaliserTable& table) {
    for (std::size_t i = 0; i < kInputs; ++i) {
      const InputStatistics& s = table[i];
      minimum_[i] = s.minimum;
      // S8: without a spread there is no z-score; the input then says nothing, and reads 0.
      inverse_sd_[i] = s.count >= 2 && s.m2 > 0 ? 1.0 / std::sqrt(s.m2 / s.count) : 0.0;
    }
  }
  double operator()(Input i, double x) const { return (x - minimum_[i]) * inverse_sd_[i]; }

 private:
  std::array<double, kInputs> minimum_;
  std::array<double, kInputs> inverse_sd_;
};

// ---- the feature set deepcc-5x20

struct Feature {
  const char* name;
  const char* unit;
  float low, high;
};
// The paper clips the reward at 100; no part of the observation needs to tell apart what lies beyond. rho itself is
// clipped to [0, 100], so 1 - rho lies in [-99, 1]: the latest rho may exceed 1 while the average of two does not.
constexpr float kLimit = 100.0F;
constexpr std::array<Feature, 5> kFeatures = {{
    {"excess_delay", "ratio", 0.0F, kLimit},           // rho (1 - k)
    {"delay_headroom", "ratio", 1.0F - kLimit, 1.0F},  // (1 - rho) k
    {"samples", "sd", 0.0F, kLimit},                   // k n~
    {"rate", "sd", 0.0F, kLimit},                      // k thr~
    {"cwnd", "sd", 0.0F, kLimit},                      // cwnd~
}};
constexpr const char* kFeatureSetName = "deepcc-5x20";
constexpr int kFeatureSetVersion = 1;
constexpr std::size_t kHistory = 20;
constexpr std::size_t kStateSize = kHistory * kFeatures.size();
constexpr std::size_t kRulePeriods = 10;
constexpr double kMaxReward = 100.0;

// What the records of one flow have left behind.
class FlowState {
 public:
  // Takes a record. Returns false, and leaves everything as it was, for one without an RTT sample.
  bool update(const reinet_flow_stats& s, const Normaliser& normalise) {
    reward_ = 0.0F;
    if (!has_sample(s)) return false;
    const auto x = inputs_of(s);
    const double delay = normalise(kDelay, x[kDelay]);
    const double target = normalise(kDelay, rebased_ms(s.target_us, s.min_rtt_us));
    const double samples = clipped(normalise(kSamples, x[kSamples]));
    const double rate = clipped(normalise(kRate, x[kRate]));
    const double cwnd = clipped(normalise(kCwnd, x[kCwnd]));
    // S7: a target at or below the smallest delay ever seen makes the ratio meaningless; DeepCC's code then takes d~.
    const double rho = clipped(target > 0 ? delay / target : delay);

    const double n = static_cast<double>(s.rtt_samples);
    const double rho_bar = (rho * n + previous_rho_ * previous_samples_) / (n + previous_samples_);
    previous_rho_ = rho;
    previous_samples_ = n;

    const bool on_target = rho_bar <= 1.0;
    push(on_target ? std::array{0.0, 1.0 - rho, samples, rate, cwnd} : std::array{rho, 0.0, 0.0, 0.0, cwnd});
    const double gain = std::min(samples * rate * rho, kMaxReward);
    reward_ = static_cast<float>(on_target ? gain : -gain);
    update_rule(s);
    return true;
  }

  const float* state() const { return history_.data(); }
  float reward() const { return reward_; }
  float rule_pkts() const { return rule_pkts_; }

 private:
  static double clipped(double x) { return std::clamp(x, 0.0, static_cast<double>(kLimit)); }

  void push(const std::array<double, kFeatures.size()>& observation) {
    constexpr std::size_t width = kFeatures.size();
    std::memmove(history_.data() + width, history_.data(), (kStateSize - width) * sizeof(float));
    for (std::size_t i = 0; i < width; ++i) history_[i] = static_cast<float>(observation[i]);
  }

  void update_rule(const reinet_flow_stats& s) {
    rates_[periods_++ % kRulePeriods] = s.delivery_rate_bytes_per_s;
    const double rate = static_cast<double>(*std::max_element(rates_.begin(), rates_.end()));
    rule_pkts_ = s.mss_bytes ? static_cast<float>(rate * s.min_rtt_us * 1e-6 / s.mss_bytes) : 0.0F;
  }

  std::array<float, kStateSize> history_{};
  std::array<std::uint64_t, kRulePeriods> rates_{};
  std::uint32_t periods_ = 0;
  double previous_rho_ = 0.0;
  double previous_samples_ = 0.0;
  float reward_ = 0.0F;
  float rule_pkts_ = 0.0F;
};

// ---- heads

enum class Head { cwnd, bdp };
constexpr std::array<const char*, 2> kHeadNames = {"cwnd", "bdp"};
constexpr double kRuleGain = 1.5;             // of the bdp head: action 0 is the hand rule
constexpr std::uint32_t kMinCapPkts = 4;      // the paper's; below it neither fast retransmit nor delayed ACKs work
constexpr std::uint32_t kMaxCapPkts = 40000;  // the paper's

// Cap in packets, 0 = none: for an action that is no number, and for the bdp head before any rate is known.
inline std::uint32_t cap_from_action(Head head, float action, std::uint32_t cwnd_pkts, float rule_pkts,
                                     std::uint32_t ceiling_pkts) {
  if (!std::isfinite(action) || !std::isfinite(rule_pkts)) return 0;
  if (head == Head::bdp && rule_pkts <= 0.0F) return 0;
  const double factor = std::exp2(std::clamp(static_cast<double>(action), -1.0, 1.0));
  const double pkts = factor * (head == Head::cwnd ? static_cast<double>(cwnd_pkts) : kRuleGain * rule_pkts);
  const double highest = std::max(ceiling_pkts, kMinCapPkts);
  return static_cast<std::uint32_t>(std::clamp(std::nearbyint(pkts), static_cast<double>(kMinCapPkts), highest));
}

}  // namespace reinet

#endif
