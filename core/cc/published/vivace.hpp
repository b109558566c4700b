// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_VIVACE_HPP
#define REINET_VIVACE_HPP

#include <algorithm>
#include <cmath>

#include "core/cc/published/pcc.hpp"

namespace reinet {

// PCC Vivace (Dong et al., 2018): u = x^0.9 - 900 x max(0, dRTT/dt) - 11.35 x L, with the sending rate x in Mbit/s.
// After a start that doubles, the rate climbs u's gradient, measured by a pair of trials at r (1 +- 5 %): steps grow
// with the number of times in a row that the sign held (the confidence amplifier), within a bound that grows as long
// as it is hit.
class VivaceLaw {
 public:
  static constexpr const char* kName = "vivace";

  double utility(const MonitorInterval& m) const {
    const double x = m.mbps();
    const auto [slope, error] = m.rtt_gradient();
    const double rise = slope > std::max(kGradientNoise, kErrors * error) ? slope : 0.0;
    return std::pow(x, 0.9) - kLatencyWeight * x * rise - kLossWeight * x * m.loss_rate();
  }

  double interval_rtts(SplitMix64&) const { return 1.0; }

  void limit(double bytes_per_s) { rate_ = std::min(rate_, bytes_per_s); }

  TrialPlan start(double bytes_per_s) {
    rate_ = bytes_per_s;
    return {rate_, 1, {rate_}};
  }

  TrialPlan next(const Utilities& u, SplitMix64& random) {
    if (starting_) {
      if (!known_ || u[0] > last_) {
        known_ = true;
        last_ = u[0];
        rate_ *= 2;
        return {rate_, 1, {rate_}};
      }
      starting_ = false;
      rate_ /= 2;
    } else {
      climb(up_first_ ? u[0] - u[1] : u[1] - u[0]);
    }
    up_first_ = random.next() & 1;
    const double sign = up_first_ ? 1 : -1;
    return {rate_, 2, {rate_ * (1 + sign * kEpsilon), rate_ * (1 - sign * kEpsilon)}};
  }

 private:
  static constexpr double kLatencyWeight = 900, kLossWeight = 11.35;  // the paper's b and c
  static constexpr double kGradientNoise = 0.01;  // less is taken for noise, as in the paper's low filter
  // A link with a clock of 1 ms shakes the RTT, and with it the slope over 20 ms, by more than that (N5 in
  // docs/congestion-controls.md).
  static constexpr double kErrors = 3.0;
  static constexpr double kEpsilon = 0.05;                  // the paper's trials
  static constexpr double kStep = 1.0;                      // Mbit/s per unit of gradient: the paper's theta_0
  static constexpr double kBound = 0.05, kBoundStep = 0.1;  // of the rate: omega_0 and delta
  static constexpr double kMbps = 125'000;                  // bytes/s
  static constexpr double kMinBytesPerS = 12'500;           // 0.1 Mbit/s, as Pcc's

  // difference: the utility of the faster trial less that of the slower.
  void climb(double difference) {
    const double gradient = difference / (2 * kEpsilon * rate_ / kMbps);
    const bool up = gradient > 0;
    if (up != up_) same_sign_ = bounds_hit_ = 0;
    up_ = up;
    ++same_sign_;
    const double amplifier = same_sign_ <= 3 ? same_sign_ : 2 * same_sign_ - 3;
    const double step = amplifier * kStep * gradient * kMbps;
    const double bound = (kBound + bounds_hit_ * kBoundStep) * rate_;
    bounds_hit_ = std::abs(step) > bound ? bounds_hit_ + 1 : 0;
    rate_ = std::max(rate_ + std::clamp(step, -bound, bound), kMinBytesPerS);
  }

  double rate_ = 0.0;  // bytes per second
  double last_ = 0.0;
  bool starting_ = true;
  bool known_ = false;
  bool up_first_ = false;
  bool up_ = true;
  double same_sign_ = 0;
  double bounds_hit_ = 0;
};

using Vivace = Pcc<VivaceLaw>;

}  // namespace reinet

#endif
