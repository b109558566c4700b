// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALLEGRO_HPP
#define REINET_ALLEGRO_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/cc/published/pcc.hpp"

namespace reinet {

// PCC Allegro (Dong et al., 2015): u = T sigmoid(L - 0.05) - x L, with throughput T, sending rate x and loss rate L.
// How it shares the simulated TCP's window is N4 in docs/congestion-controls.md.
//
//   kStarting: the rate doubles while u rises.
//   kDeciding: two pairs of trials at r (1 +- eps), in random order; if both pairs agree the rate moves that way, else
//              eps grows by 1 % up to 5 %.
//   kMoving:   steps of 1 %, 2 %, 3 % ... that way while u rises.
class AllegroLaw {
 public:
  static constexpr const char* kName = "allegro";

  double utility(const MonitorInterval& m) const {
    const double loss = m.loss_rate(), x = m.mbps();
    return x * (1 - loss) / (1 + std::exp(kSigmoidSlope * (loss - kLossLimit))) - x * loss;
  }

  // Returns an interval's length: randomly 1.7 to 2.2 round trips, as in the paper, so that flows do not march in step.
  double interval_rtts(SplitMix64& random) const { return 1.7 + 0.5 * random.uniform(); }

  void limit(double bytes_per_s) { rate_ = std::min(rate_, bytes_per_s); }

  TrialPlan start(double bytes_per_s) {
    rate_ = bytes_per_s;
    return single(rate_);
  }

  TrialPlan next(const Utilities& u, SplitMix64& random) {
    switch (phase_) {
      case Phase::kStarting:
        return started(u[0], random);
      case Phase::kDeciding:
        return decided(u, random);
      default:
        return moved(u[0], random);
    }
  }

 private:
  enum class Phase { kStarting, kDeciding, kMoving };

  static constexpr double kLossLimit = 0.05;                       // the paper's: more loss than that is congestion
  static constexpr double kSigmoidSlope = 100.0;                   // the paper's alpha
  static constexpr double kMinEpsilon = 0.01, kMaxEpsilon = 0.05;  // the paper's trials

  static TrialPlan single(double rate) { return {rate, 1, {rate}}; }

  TrialPlan started(double u, SplitMix64& random) {
    if (known_ && u < last_) {
      rate_ /= 2;
      return decide(random);
    }
    known_ = true;
    last_ = u;
    rate_ *= 2;
    return single(rate_);
  }

  TrialPlan decide(SplitMix64& random) {
    phase_ = Phase::kDeciding;
    TrialPlan plan{rate_, 4, {}};
    for (std::size_t pair = 0; pair < 2; ++pair) {
      up_first_[pair] = random.next() & 1;
      const double sign = up_first_[pair] ? 1 : -1;
      plan.bytes_per_s[2 * pair] = rate_ * (1 + sign * epsilon_);
      plan.bytes_per_s[2 * pair + 1] = rate_ * (1 - sign * epsilon_);
    }
    return plan;
  }

  TrialPlan decided(const Utilities& u, SplitMix64& random) {
    bool up_won[2], down_won[2];
    double up_sum = 0, down_sum = 0;
    for (std::size_t pair = 0; pair < 2; ++pair) {
      double up = u[2 * pair], down = u[2 * pair + 1];
      if (!up_first_[pair]) std::swap(up, down);
      up_won[pair] = up > down;
      down_won[pair] = down > up;
      up_sum += up;
      down_sum += down;
    }
    const bool up = up_won[0] && up_won[1], down = down_won[0] && down_won[1];
    if (!up && !down) {
      epsilon_ = std::min(epsilon_ + kMinEpsilon, kMaxEpsilon);
      return decide(random);
    }
    phase_ = Phase::kMoving;
    sign_ = up ? 1 : -1;
    last_ = (up ? up_sum : down_sum) / 2;
    rate_ *= 1 + sign_ * epsilon_;
    epsilon_ = kMinEpsilon;
    steps_ = 0;
    return step();
  }

  TrialPlan step() {
    before_ = rate_;
    rate_ *= 1 + sign_ * std::min(++steps_ * kMinEpsilon, 0.5);
    return single(rate_);
  }

  TrialPlan moved(double u, SplitMix64& random) {
    if (u < last_) {
      rate_ = before_;
      return decide(random);
    }
    last_ = u;
    return step();
  }

  Phase phase_ = Phase::kStarting;
  double rate_ = 0.0;    // bytes per second
  double before_ = 0.0;  // the rate before the last step
  double last_ = 0.0;    // its utility
  double epsilon_ = kMinEpsilon;
  double sign_ = 1;
  double steps_ = 0;
  bool known_ = false;
  bool up_first_[2] = {};
};

using Allegro = Pcc<AllegroLaw>;

}  // namespace reinet

#endif
