// SPDX-License-Identifier: Apache-2.0
//
// The quantities of DeepCC's equations 1-3, from which its features and its reward are made; S1 to S9 are the
// deviations of docs/deviations.md.
//
//   d' = mean RTT - min RTT + 21 ms, T' = target - min RTT + 21 ms     T~ uses the statistics of d'
//   x~ = (x - smallest x seen) / standard deviation of x  (S2)
//   rho = d~ / T~, rho_bar = mean of the two latest rho weighted by samples, k = 1 if rho_bar <= 1 else 0
#ifndef REINET_DEEPCC_HPP
#define REINET_DEEPCC_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/states/feature.hpp"
#include "core/states/normaliser.hpp"

namespace reinet {

enum DeepCcInput : std::size_t { kDelay, kSamples, kRate, kCwnd, kDeepCcInputCount };
// A path like the paper's: some 5 Mbit/s through a buffer of 100 packets, reported every 40 ms or so.
constexpr std::array<Input, kDeepCcInputCount> kDeepCcInputs = {{
    {"delay_ms", "mean RTT - min RTT + 21 ms", 60.0, 40.0, 21.0},  // 21 ms: an empty queue
    {"samples", "RTT samples", 12.0, 12.0, 1.0},                   // a period without a sample is not observed
    {"rate_bytes_per_s", "delivered bytes / period", 600'000.0, 600'000.0, 0.0},
    {"cwnd_pkts", "cwnd", 40.0, 40.0, 2.0},  // two packets are Cubic's least ssthresh
}};

// Delays are moved to a path of this minimum RTT, DeepCC's own, so that one policy serves paths of any base RTT.
constexpr double kReferenceMinRttMs = 21.0;

inline double rebased_ms(std::uint32_t delay_us, std::uint32_t min_rtt_us) {
  return (static_cast<double>(delay_us) - static_cast<double>(min_rtt_us)) / 1000.0 + kReferenceMinRttMs;
}

inline std::array<double, kDeepCcInputCount> deepcc_inputs(const reinet_flow_stats& s) {
  return {rebased_ms(s.rtt_mean_us, s.min_rtt_us), static_cast<double>(s.rtt_samples),
          static_cast<double>(s.delivery_rate_bytes_per_s), static_cast<double>(s.cwnd_pkts)};
}

// The paper clips the reward at 100; nothing needs to tell apart what lies beyond. rho itself is clipped to [0, 100],
// so 1 - rho lies in [-99, 1]: the latest rho may exceed 1 while the average of two does not.
constexpr float kDeepCcLimit = 100.0F;

struct DeepCcQuantities {
  double rho, samples, rate, cwnd;
  bool on_target;  // k = 1
};

// What the records of one flow leave behind for rho_bar.
class DeepCcMemory {
 public:
  // Takes a record that has a sample.
  DeepCcQuantities update(const reinet_flow_stats& s, const Normaliser& normalise) {
    const auto x = deepcc_inputs(s);
    const double delay = normalise(kDelay, x[kDelay]);
    const double target = normalise(kDelay, rebased_ms(s.target_us, s.min_rtt_us));
    // S7: a target at or below the smallest delay ever seen makes the ratio meaningless; DeepCC's code then takes d~.
    const double rho = clipped(target > 0 ? delay / target : delay);
    const double n = static_cast<double>(s.rtt_samples);
    const double rho_bar = (rho * n + previous_rho_ * previous_samples_) / (n + previous_samples_);
    previous_rho_ = rho;
    previous_samples_ = n;
    return {rho, clipped(normalise(kSamples, x[kSamples])), clipped(normalise(kRate, x[kRate])),
            clipped(normalise(kCwnd, x[kCwnd])), rho_bar <= 1.0};
  }

 private:
  static double clipped(double x) { return std::clamp(x, 0.0, static_cast<double>(kDeepCcLimit)); }

  double previous_rho_ = 0.0;
  double previous_samples_ = 0.0;
};

}  // namespace reinet

#endif
