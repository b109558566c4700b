// SPDX-License-Identifier: Apache-2.0
//
// What Sprout's receiver believes of the link's rate (Winstein, Sivaraman and Balakrishnan, NSDI 2013, section 3): a
// probability for each of 257 rates up to 1000 packets/s. Between ticks of 20 ms the rate wanders as Brownian motion;
// a tick's count of packets says, by Poisson's law, how likely each rate was. A forecast is the count that the next
// ticks exceed with 95 % probability.
//
// As Sprout's own implementation has it (process.cc and processforecaster.cc, c838669), which leaves the paper in that
// a link without deliveries is a rate in the lowest bin, 2 packets/s, whose probability is not kept while the rate
// leaves it: an outage ends sooner than the paper's second.
#ifndef REINET_RATE_BELIEF_HPP
#define REINET_RATE_BELIEF_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace reinet {

class RateBelief {
 public:
  static constexpr double kTickS = 0.02;

  RateBelief() { p_.fill(1.0 / kBins); }

  // A tick passes, and the rate wanders.
  void evolve() {
    Bins after{};
    const Steps& steps = wandering();
    for (std::size_t from = 0; from < kBins; ++from) {
      if (p_[from] == 0.0) continue;
      for (std::size_t i = 0; i < kSteps; ++i) {
        const std::size_t to = from + i - kReach;  // below 0: beyond any bin
        if (to < kBins) after[to] += p_[from] * steps[from][i];
      }
    }
    p_ = after;
    normalise();
  }

  // So many packets came in a tick. Likelihoods count relative to the largest of what is possible, since those of a
  // count far above every rate's would all be too small for a number.
  void observe(std::uint32_t pkts) {
    Bins log_likelihood;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      log_likelihood[bin] = pkts * std::log(rate(bin) * kTickS) - rate(bin) * kTickS;
      if (p_[bin] > 0.0) largest = std::max(largest, log_likelihood[bin]);
    }
    for (std::size_t bin = 0; bin < kBins; ++bin)
      if (p_[bin] > 0.0) p_[bin] *= std::exp(log_likelihood[bin] - largest);
    normalise();
  }

  // Returns the packets that the next ticks, 1 or kFarTicks, bring at least with the probability 1 - kRisk.
  std::uint32_t cautious_pkts(bool far) const {
    const Counts& counts = far ? forecasts().far : forecasts().near;
    double at_most = 0.0;  // P(packets <= count)
    for (std::uint32_t count = 0; count < counts.size(); ++count) {
      for (std::size_t bin = 0; bin < kBins; ++bin) at_most += p_[bin] * counts[count][bin];
      if (at_most >= kRisk) return count;
    }
    return static_cast<std::uint32_t>(counts.size());
  }

  static constexpr std::size_t kFarTicks = 6;

 private:
  // The paper's constants; the implementation has a bin more than its 256.
  static constexpr std::size_t kBins = 257;
  static constexpr double kBinPktsPerS = 1000.0 / 256;
  static constexpr double kSigmaPktsPerS = 200.0;  // sigma, per square root of a second
  static constexpr double kEscapePerS = 1.0;       // lambda_z: how readily an outage ends
  static constexpr double kRisk = 0.05;
  // The implementation's: the rate wanders by at most five standard deviations in a tick, which brings less than 30.
  static constexpr double kReachSigmas = 5.0;
  static constexpr std::size_t kTickPkts = 30;
  static constexpr std::size_t kReach = 37;  // kReachSigmas of a tick, in bins
  static constexpr std::size_t kSteps = 2 * kReach + 1;

  using Bins = std::array<double, kBins>;
  using Steps = std::array<std::array<double, kSteps>, kBins>;  // from a bin to those around it
  using Counts = std::vector<Bins>;                             // the probability of a count, by the bin of the start

  struct Forecasts {
    Counts near, far;
  };

  static double rate(std::size_t bin) { return (static_cast<double>(bin) + 0.5) * kBinPktsPerS; }

  static double poisson(std::size_t bin, std::uint32_t pkts) {
    const double mean = rate(bin) * kTickS;
    int sign;  // std::lgamma leaves it in a global, which threads share
    return std::exp(pkts * std::log(mean) - mean - ::lgamma_r(pkts + 1.0, &sign));
  }

  void normalise() {
    double sum = 0.0;
    for (const double p : p_) sum += p;
    for (double& p : p_) p /= sum;
  }

  // What lies beyond the first and the last bin is theirs.
  static const Steps& wandering() {
    static const Steps steps = [] {
      Steps s{};
      const double sigma = kSigmaPktsPerS * std::sqrt(kTickS), escapes = 1.0 - std::exp(-kEscapePerS * kTickS);
      const auto below = [&](double bins) { return 0.5 * std::erfc(-bins * kBinPktsPerS / sigma / std::sqrt(2.0)); };
      for (std::size_t from = 0; from < kBins; ++from) {
        for (std::size_t i = 0; i < kSteps; ++i) {
          const std::size_t to = from + i - kReach;
          const double bins = static_cast<double>(i) - static_cast<double>(kReach);
          if (to >= kBins || std::abs(bins) > kReachSigmas * sigma / kBinPktsPerS + 0.5) continue;
          s[from][i] = (to == kBins - 1 ? 1.0 : below(bins + 0.5)) - (to == 0 ? 0.0 : below(bins - 0.5));
          if (from == 0) s[from][i] *= to == 0 ? 1.0 - escapes : escapes;
        }
      }
      return s;
    }();
    return steps;
  }

  // The counts of one tick after so many, and of all ticks up to it, for every bin that the rate may start in. They
  // never end: the thread of alcc/ goes on while its program exits.
  static const Forecasts& forecasts() {
    static const Forecasts& made = *new Forecasts([] {
      Counts tick(kTickPkts + 1);  // the last: what is left of the probability, for the lowest bin loses some
      for (std::uint32_t count = 0; count < kTickPkts; ++count)
        for (std::size_t bin = 0; bin < kBins; ++bin) tick[count][bin] = poisson(bin, count);
      tick[kTickPkts].fill(1.0);
      Counts so_far = one_tick(tick);
      Forecasts f{so_far, {}};
      for (std::size_t i = 1; i < kFarTicks; ++i) {
        for (Bins& of_count : tick) of_count = before(of_count);
        so_far = sum(so_far, one_tick(tick));
      }
      f.far = so_far;
      return f;
    }());
    return made;
  }

  // A tick's counts, given that it starts in one bin or another, by the bin a tick earlier.
  static Bins before(const Bins& of_count) {
    Bins b{};
    const Steps& steps = wandering();
    for (std::size_t from = 0; from < kBins; ++from)
      for (std::size_t i = 0; i < kSteps; ++i)
        if (const std::size_t to = from + i - kReach; to < kBins) b[from] += steps[from][i] * of_count[to];
    return b;
  }

  static Counts one_tick(const Counts& tick) {
    Counts counts(tick.begin(), tick.end() - 1);
    for (Bins& of_count : counts)
      for (std::size_t bin = 0; bin < kBins; ++bin) of_count[bin] /= tick.back()[bin];
    return counts;
  }

  // The counts of both together, each being independent of the other once the first bin is known.
  static Counts sum(const Counts& a, const Counts& b) {
    Counts both(a.size() + b.size() - 1, Bins{});
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t j = 0; j < b.size(); ++j)
        for (std::size_t bin = 0; bin < kBins; ++bin) both[i + j][bin] += a[i][bin] * b[j][bin];
    return both;
  }

  Bins p_;
};

}  // namespace reinet

#endif
