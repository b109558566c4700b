// SPDX-License-Identifier: Apache-2.0
//
// Sprout (Winstein, Sivaraman and Balakrishnan, 2013). A belief over the link's rate, 256 values up to 1000
// packets/s, moves as Brownian motion with a sticky outage and is updated every 20 ms by the number of deliveries;
// the window is what the link will deliver within 100 ms with 95 % probability.
//
// Sprout's receiver keeps the belief and sends forecasts back. Here the sender does, from the ACKs, which are later
// by the constant way back. Each tick's rate is taken to have held for the whole forecast up to it (N7 in
// docs/congestion-controls.md). Constants without another reason are the paper's.
#ifndef REINET_SPROUT_HPP
#define REINET_SPROUT_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/cc/congestion_control.hpp"

namespace reinet {

class RateBelief {
 public:
  static constexpr std::size_t kBins = 256;
  static constexpr double kMaxPktsPerS = 1000.0;
  static constexpr double kTickS = 0.02;

  RateBelief() { p_.fill(1.0 / kBins); }

  // A tick passes: the rate wanders, and an outage ends or not.
  void evolve() {
    std::array<double, kBins> after{};
    const Kernel& kernel = wandering();
    const auto bins = static_cast<std::ptrdiff_t>(kBins);
    for (std::ptrdiff_t from = 1; from < bins; ++from) {
      const double p = p_[static_cast<std::size_t>(from)];
      if (p < kNegligible) continue;
      for (std::ptrdiff_t step = -kReach; step <= kReach; ++step) {
        const std::ptrdiff_t to = std::clamp<std::ptrdiff_t>(from + step, 0, bins - 1);
        after[static_cast<std::size_t>(to)] += p * kernel[static_cast<std::size_t>(step + kReach)];
      }
    }
    const double stays = p_[0] * std::exp(-kEscapePerS * kTickS), leaves = p_[0] - stays;
    after[0] += stays;
    for (std::ptrdiff_t step = 0; step <= kReach; ++step)  // upwards only: the kernel's half, twice, less its middle
      after[static_cast<std::size_t>(std::max<std::ptrdiff_t>(step, 1))] +=
          leaves * kernel[static_cast<std::size_t>(step + kReach)] * (step == 0 ? 1 : 2);
    p_ = after;
  }

  // So many were delivered in a tick; at_least: the link could have delivered more, had it had them.
  void observe(std::uint32_t pkts, bool at_least) {
    double sum = 0.0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      p_[bin] = std::max(p_[bin] * likelihood(rate(bin) * kTickS, pkts, at_least), kFloor);
      sum += p_[bin];
    }
    for (double& p : p_) p /= sum;
  }

  // Packets that so many ticks, the belief being that of the last one, deliver with the probability 1 - risk.
  std::uint32_t cautious_pkts(std::size_t ticks, double risk) const {
    std::array<double, kBins> term{};  // Poisson's, of the present count
    double at_most = 0.0;              // P(deliveries <= count)
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      term[bin] = std::exp(-rate(bin) * kTickS * static_cast<double>(ticks));
      at_most += p_[bin] * term[bin];
    }
    std::uint32_t count = 0;
    while (at_most < risk && count < kMostPkts) {
      ++count;
      for (std::size_t bin = 0; bin < kBins; ++bin) {
        term[bin] *= rate(bin) * kTickS * static_cast<double>(ticks) / count;
        at_most += p_[bin] * term[bin];
      }
    }
    return count;
  }

 private:
  static constexpr double kSigmaPktsPerS = 200.0;   // the paper's sigma, per square root of a second
  static constexpr double kEscapePerS = 1.0;        // the paper's lambda_z: outages last a second on average
  static constexpr double kNegligible = 1e-12;      // too little to move a forecast: passing it over saves time
  static constexpr double kFloor = 1e-12;           // nothing is ever impossible
  static constexpr std::ptrdiff_t kReach = 29;      // bins: four standard deviations of a tick
  static constexpr std::uint32_t kMostPkts = 1000;  // an end to the loop: ten times the fastest rate's in 100 ms
  using Kernel = std::array<double, 2 * kReach + 1>;

  static double rate(std::size_t bin) { return kMaxPktsPerS * static_cast<double>(bin) / (kBins - 1); }

  static const Kernel& wandering() {
    static const Kernel kernel = [] {
      Kernel k{};
      const double sigma_bins = kSigmaPktsPerS * std::sqrt(kTickS) * (kBins - 1) / kMaxPktsPerS;
      double sum = 0.0;
      for (std::ptrdiff_t i = -kReach; i <= kReach; ++i) {
        const double z = static_cast<double>(i) / sigma_bins;
        sum += k[static_cast<std::size_t>(i + kReach)] = std::exp(-z * z / 2);
      }
      for (double& p : k) p /= sum;
      return k;
    }();
    return kernel;
  }

  static double likelihood(double mean, std::uint32_t pkts, bool at_least) {
    if (!at_least) {
      int sign;  // std::lgamma leaves it in a global, which threads share
      return mean > 0.0 ? std::exp(pkts * std::log(mean) - mean - ::lgamma_r(pkts + 1.0, &sign)) : pkts == 0;
    }
    double term = std::exp(-mean), less = 0.0;
    for (std::uint32_t i = 0; i < pkts; ++i, term *= mean / i) less += term;
    return std::max(1.0 - less, 0.0);
  }

  std::array<double, kBins> p_;
};

class Sprout : public ControlDefaults {
 public:
  static constexpr const char* kName = "sprout";

  void on_start(Window& w, const Start& start) {
    w.ssthresh_pkts = 0;
    window_pkts_ = w.cwnd_pkts;
    min_rtt_us_ = start.rtt_us;
    heard_us_ = start.now_us;
    tick_us_ = start.now_us + kTickUs;
  }

  void on_ack(Window& w, const AckEvent& ack, const RateSample&) {
    delivered_pkts_ += ack.delivered_pkts;
    if (ack.delivered_pkts > 0) heard_us_ = ack.now_us;
    if (ack.rtt_us >= 0) {
      min_rtt_us_ = std::min(min_rtt_us_, static_cast<std::uint32_t>(ack.rtt_us));
      waited_ |= static_cast<std::uint32_t>(ack.rtt_us) > min_rtt_us_ + kTickUs;
    }
    w.cwnd_pkts = window_pkts_;
  }

  std::uint32_t on_loss(const Window& w, LossCause) { return w.ssthresh_pkts; }

  Us timer_us() const { return tick_us_; }
  void on_timer(Window& w, Us now_us, std::uint32_t in_flight_pkts) {
    tick_us_ = now_us + kTickUs;
    belief_.evolve();
    // The count tells the rate only if something waited through the whole tick: what came did, or nothing came although
    // something should have. Otherwise the link could have done more.
    const bool overdue = in_flight_pkts > 0 && now_us - heard_us_ > min_rtt_us_ + kTickUs;
    belief_.observe(delivered_pkts_, !waited_ && !overdue);
    delivered_pkts_ = 0;
    waited_ = false;
    forecast();
    w.cwnd_pkts = window_pkts_;
  }

 private:
  static constexpr Us kTickUs = 20'000;
  static constexpr std::size_t kForecastTicks = 5;  // of Sprout's 8, those that the window uses: 100 ms
  static constexpr double kRisk = 0.05;             // the paper's: 95 % of forecasts are not too high

  // In flight is all that is sent and not known to be delivered: the queue's estimate. The forecast may not fall over
  // time.
  void forecast() {
    RateBelief future = belief_;
    std::uint32_t pkts = 0;
    for (std::size_t tick = 1; tick <= kForecastTicks; ++tick) {
      future.evolve();
      pkts = std::max(pkts, future.cautious_pkts(tick, kRisk));
    }
    window_pkts_ = std::max(pkts, 1U);  // one keeps looking whether an outage is over
  }

  RateBelief belief_;
  std::uint32_t window_pkts_ = 1;
  std::uint32_t delivered_pkts_ = 0;  // in this tick
  std::uint32_t min_rtt_us_ = 0;
  bool waited_ = false;
  Us heard_us_ = 0;
  Us tick_us_ = kNever;
};

}  // namespace reinet

#endif
