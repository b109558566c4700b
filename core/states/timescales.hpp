// SPDX-License-Identifier: Apache-2.0
//
// timescales: what a flow has lately seen, over windows in time. The same quantities at several time scales mean the
// same at any cadence, and one observation holds what a stack of twenty does: the network stays small.
#ifndef REINET_TIMESCALES_HPP
#define REINET_TIMESCALES_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/flow_stats.h"
#include "core/states/delay_ratio.hpp"
#include "core/states/feature.hpp"
#include "core/states/normaliser.hpp"

namespace reinet {

struct TimescaleSet {
  static constexpr const char* kName = "timescales-24x1";
  static constexpr int kVersion = 1;
  static constexpr std::size_t kHistory = 1;
  static constexpr const char* kTerms =
      "rho(x) = (x - min RTT) / max(target - min RTT, 0.1 x min RTT), cost(x) = log(1 + 4 rho(x)) / log 5; RTT_w, "
      "rate_w = mean RTT and delivered bytes per time of the records of the last w ms, the latest one at least; peak = "
      "the largest rate_20 of the last 240 ms and the record before, peak_2000 = that of the last 2 s; rule = peak x "
      "min RTT / mss; log is the natural one";
  static constexpr std::array<Feature, 24> kFeatures = {{
      {"delay_last", "log", 0.0F, 4.0F, "cost(latest RTT sample)"},
      {"delay", "log", 0.0F, 4.0F, "cost(mean RTT)"},
      {"delay_20", "log", 0.0F, 4.0F, "cost(RTT_20)"},
      {"delay_40", "log", 0.0F, 4.0F, "cost(RTT_40)"},
      {"delay_80", "log", 0.0F, 4.0F, "cost(RTT_80)"},
      {"delay_320", "log", 0.0F, 4.0F, "cost(RTT_320)"},
      {"slope_20", "ratio", -4.0F, 4.0F, "rho(latest RTT sample) - rho(RTT_20)"},
      {"slope_80", "ratio", -4.0F, 4.0F, "rho(mean RTT) - rho(RTT_80)"},
      {"rate", "ratio", 0.0F, 4.0F, "rate / peak"},
      {"rate_10", "ratio", 0.0F, 4.0F, "rate_10 / peak"},
      {"rate_20", "ratio", 0.0F, 1.0F, "rate_20 / peak"},
      {"rate_40", "ratio", 0.0F, 1.0F, "rate_40 / peak"},
      {"rate_80", "ratio", 0.0F, 1.0F, "rate_80 / peak"},
      {"rate_160", "ratio", 0.0F, 1.0F, "rate_160 / peak"},
      {"rate_320", "ratio", 0.0F, 1.0F, "rate_320 / peak"},
      {"past_peak", "log", 0.0F, 4.0F, "log(peak_2000 / peak)"},
      {"in_flight", "log", -4.0F, 4.0F, "log(in flight / rule)"},
      {"in_flight_40", "log", -4.0F, 4.0F, "log(in flight 40 ms ago / rule)"},
      {"cap", "log", -4.0F, 4.0F, "log(cap in force / rule), 0 without one"},
      {"rule", "log", -4.0F, 11.0F, "log(rule)"},
      {"period", "log", -4.0F, 4.0F, "log(period / min RTT)"},
      {"room", "log", -4.0F, 4.0F, "log((target - min RTT) / min RTT)"},
      {"min_rtt", "log", -4.0F, 4.0F, "log(min RTT / 20 ms)"},
      {"recovery", "flag", 0.0F, 1.0F, "1 in recovery from loss"},
  }};
  static constexpr std::array<Input, 0> kInputs = {};
  static constexpr const char* kRule = "peak x min RTT / mss";
  static std::array<double, 0> inputs_of(const reinet_flow_stats&) { return {}; }

  float rule_pkts = 0.0F;

  std::array<double, kFeatures.size()> update(const reinet_flow_stats& s, const Normaliser&) {
    push(s);
    const Mark& now = marks_.back();
    const double rate_20 = rate(20);
    const double peak = peaks_.update(s, rate_20, 240'000'000);
    const double past_peak = past_peaks_.update(s, rate_20, 2'000'000'000);
    rule_pkts = rule_product_pkts(peak, s);
    const double rho_last = rho(s, s.rtt_last_us), rho_mean = rho(s, s.rtt_mean_us);
    const double room_us = s.target_us > s.min_rtt_us ? s.target_us - s.min_rtt_us : 0.0;
    const auto share = [&](double r) { return peak > 0.0 ? r / peak : 0.0; };
    const auto log_of = [&](double x) { return x > 0.0 ? std::log(x) : -4.0; };
    std::array<double, kFeatures.size()> x = {
        delay_cost(rho_last),
        delay_cost(rho_mean),
        delay_cost(rho(s, rtt_us(20))),
        delay_cost(rho(s, rtt_us(40))),
        delay_cost(rho(s, rtt_us(80))),
        delay_cost(rho(s, rtt_us(320))),
        rho_last - rho(s, rtt_us(20)),
        rho_mean - rho(s, rtt_us(80)),
        share(static_cast<double>(s.delivery_rate_bytes_per_s)),
        share(rate(10)),
        share(rate_20),
        share(rate(40)),
        share(rate(80)),
        share(rate(160)),
        share(rate(320)),
        log_of(peak > 0.0 ? past_peak / peak : 1.0),
        log_of(now.inflight_pkts / static_cast<double>(rule_pkts)),
        log_of(before(40).inflight_pkts / static_cast<double>(rule_pkts)),
        s.cap_pkts ? log_of(s.cap_pkts / static_cast<double>(rule_pkts)) : 0.0,
        log_of(rule_pkts),
        log_of(static_cast<double>(s.period_ns) / (s.min_rtt_us * 1e3)),
        log_of(room_us / s.min_rtt_us),
        log_of(s.min_rtt_us / 20'000.0),
        s.flags & REINET_FLAG_IN_RECOVERY ? 1.0 : 0.0,
    };
    for (std::size_t i = 0; i < x.size(); ++i)  // also what is no number, 0 / 0 and the like
      x[i] = x[i] >= kFeatures[i].low ? std::min<double>(x[i], kFeatures[i].high) : kFeatures[i].low;
    return x;
  }

  std::size_t heap_bytes() const {
    return marks_.capacity() * sizeof(Mark) + peaks_.heap_bytes() + past_peaks_.heap_bytes();
  }

 private:
  static constexpr std::uint64_t kLongestNs = 320'000'000;

  // Sums up to the end of a record.
  struct Mark {
    std::uint64_t time_ns, bytes, rtt_sum_us, samples;
    std::uint32_t inflight_pkts;
  };

  void push(const reinet_flow_stats& s) {
    if (marks_.empty()) marks_.push_back({s.time_ns - std::min(s.period_ns, s.time_ns), 0, 0, 0, s.inflight_pkts});
    // A record's time is that since the end of the one before, also where its period begins later, after an idle time.
    // The shipped model was trained so: without idle times it has 1.6 % more delay over one recording with outages.
    Mark m = marks_.back();
    m.time_ns = s.time_ns;
    m.bytes += s.delivered_bytes;
    m.rtt_sum_us += std::uint64_t{s.rtt_mean_us} * s.rtt_samples;
    m.samples += s.rtt_samples;
    m.inflight_pkts = s.inflight_pkts;
    marks_.push_back(m);
    std::size_t old = 0;
    while (old + 2 < marks_.size() && marks_[old + 1].time_ns + kLongestNs <= s.time_ns) ++old;
    marks_.erase(marks_.begin(), marks_.begin() + static_cast<std::ptrdiff_t>(old));
  }

  // Returns the mark at the start of the window: the latest that is at least so old, else the oldest there is.
  const Mark& before(std::uint64_t window_ms) const {
    const std::uint64_t now_ns = marks_.back().time_ns;
    std::size_t i = marks_.size() - 2;
    while (i > 0 && marks_[i].time_ns + window_ms * 1'000'000 > now_ns) --i;
    return marks_[i];
  }

  double rate(std::uint64_t window_ms) const {
    const Mark &from = before(window_ms), &to = marks_.back();
    return to.time_ns > from.time_ns
               ? static_cast<double>(to.bytes - from.bytes) * 1e9 / static_cast<double>(to.time_ns - from.time_ns)
               : 0.0;
  }
  double rtt_us(std::uint64_t window_ms) const {
    const Mark &from = before(window_ms), &to = marks_.back();
    return static_cast<double>(to.rtt_sum_us - from.rtt_sum_us) / static_cast<double>(to.samples - from.samples);
  }
  static double rho(const reinet_flow_stats& s, double rtt_us) { return (rtt_us - s.min_rtt_us) / delay_room_us(s); }

  std::vector<Mark> marks_;
  PeakRate peaks_, past_peaks_;
};

}  // namespace reinet

#endif
