// SPDX-License-Identifier: Apache-2.0
//
// PCC's controls (Dong et al., 2015 and 2018) share this: time is cut into monitor intervals, each sent at one rate;
// what became of an interval's packets gives its utility. A law proposes a plan of rates to try; until the last of
// them is known, a round trip later, the flow goes on at the plan's base rate; then the law proposes the next one.
#ifndef REINET_PCC_HPP
#define REINET_PCC_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "core/cc/congestion_control.hpp"
#include "core/cc/random.hpp"

namespace reinet {

// One monitor interval and the fate of what was sent in it.
struct MonitorInterval {
  static constexpr int kNoTrial = -1;

  Us start_us = 0, end_us = kNever;  // of sending
  double bytes_per_s = 0.0;
  int trial = kNoTrial;  // index in the plan
  std::uint32_t sent_pkts = 0, delivered_pkts = 0, lost_pkts = 0;
  // Seconds, of what was delivered; t: when it was sent, from the interval's start.
  double sum_t = 0.0, sum_rtt = 0.0, sum_tt = 0.0, sum_t_rtt = 0.0, sum_rtt_rtt = 0.0;

  double mbps() const { return bytes_per_s * 8e-6; }
  double loss_rate() const { return sent_pkts ? std::min(1.0, static_cast<double>(lost_pkts) / sent_pkts) : 0.0; }
  // Slope of the RTT over sending time, by least squares, and its standard error.
  struct Gradient {
    double slope = 0.0, error = 0.0;
  };
  Gradient rtt_gradient() const {
    const double n = delivered_pkts, spread = n * sum_tt - sum_t * sum_t;
    if (n < 3 || spread <= 0.0) return {};
    const double slope = (n * sum_t_rtt - sum_t * sum_rtt) / spread;
    const double residual = n * sum_rtt_rtt - sum_rtt * sum_rtt - slope * slope * spread;
    return {slope, std::sqrt(std::max(residual, 0.0) / ((n - 2) * spread))};
  }
};

// The intervals whose packets are still out, oldest first.
class Monitor {
 public:
  void open(Us now_us, double bytes_per_s, int trial) {
    close(now_us);
    if (count_ == kCapacity) drop_oldest();
    MonitorInterval& m = at(count_++);
    m = {};
    m.start_us = now_us;
    m.bytes_per_s = bytes_per_s;
    m.trial = trial;
  }

  bool current_is_empty() const { return count_ == 0 || at(count_ - 1).sent_pkts == 0; }

  void on_sent() {
    if (count_) ++at(count_ - 1).sent_pkts;
  }
  void on_delivered(Us sent_us, Us now_us) {
    newest_us_ = std::max(newest_us_, sent_us);
    MonitorInterval* m = holding(sent_us);
    if (!m) return;
    const double t = static_cast<double>(sent_us - m->start_us) * 1e-6;
    const double rtt = static_cast<double>(now_us - sent_us) * 1e-6;
    ++m->delivered_pkts;
    m->sum_t += t;
    m->sum_rtt += rtt;
    m->sum_tt += t * t;
    m->sum_t_rtt += t * rtt;
    m->sum_rtt_rtt += rtt * rtt;
  }
  void on_lost(Us sent_us) {
    if (MonitorInterval* m = holding(sent_us)) ++m->lost_pkts;
  }

  // Takes the oldest interval, if it is over and the fate of its packets known: of all of them, or, where a loss
  // probe has sent one a second time, because something has arrived that left grace_us later.
  bool take(MonitorInterval& out, Us grace_us) {
    if (count_ == 0) return false;
    const MonitorInterval& m = at(0);
    const bool all_known = m.delivered_pkts + m.lost_pkts >= m.sent_pkts;
    if (m.end_us == kNever || (!all_known && newest_us_ < m.end_us + grace_us)) return false;
    out = m;
    drop_oldest();
    return true;
  }

 private:
  static constexpr std::size_t kCapacity = 32;  // an interval lasts a round trip or more; few are ever out

  MonitorInterval& at(std::size_t i) { return intervals_[(first_ + i) % kCapacity]; }
  const MonitorInterval& at(std::size_t i) const { return intervals_[(first_ + i) % kCapacity]; }
  void close(Us now_us) {
    if (count_) at(count_ - 1).end_us = now_us;
  }
  void drop_oldest() {
    first_ = (first_ + 1) % kCapacity;
    --count_;
  }
  MonitorInterval* holding(Us sent_us) {
    for (std::size_t i = count_; i-- > 0;)
      if (at(i).start_us <= sent_us) return sent_us < at(i).end_us ? &at(i) : nullptr;
    return nullptr;
  }

  std::array<MonitorInterval, kCapacity> intervals_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  Us newest_us_ = 0;  // the latest transmission delivered
};

// Rates to try, one interval each, and the rate for the time until their results are in.
struct TrialPlan {
  static constexpr std::size_t kMaxTrials = 4;

  double base_bytes_per_s = 0.0;
  std::size_t trials = 0;
  std::array<double, kMaxTrials> bytes_per_s{};
};
using Utilities = std::array<double, TrialPlan::kMaxTrials>;

template <class L>
concept PccLaw = std::default_initializable<L> &&
                 requires(L law, const MonitorInterval& m, const Utilities& u, SplitMix64& random, double bytes_per_s) {
                   { L::kName } -> std::convertible_to<const char*>;
                   { law.utility(m) } -> std::same_as<double>;
                   { law.interval_rtts(random) } -> std::same_as<double>;
                   { law.start(bytes_per_s) } -> std::same_as<TrialPlan>;
                   // After the utilities of the last plan's trials.
                   { law.next(u, random) } -> std::same_as<TrialPlan>;
                   // A rate far above anything that is ever delivered says nothing, as where a cap limits the flow.
                   law.limit(bytes_per_s);
                 };

template <PccLaw Law>
class Pcc : public ControlDefaults {
 public:
  static constexpr const char* kName = Law::kName;

  void on_start(Window& w, const Start& start) {
    mss_bytes_ = start.mss_bytes;
    srtt_us_ = std::max(start.rtt_us, 1U);
    random_ = SplitMix64(start.seed);
    w.ssthresh_pkts = 0;
    adopt(law_.start(static_cast<double>(kInitialWindowPkts) * mss_bytes_ * 1e6 / srtt_us_));
    begin_interval(w, start.now_us);
  }

  void on_ack(Window& w, const AckEvent& ack, const RateSample& rate) {
    srtt_us_ = std::max(ack.srtt_us, 1U);
    if (rate.valid()) {
      const double delivered_pkts_per_s = rate.delivered_pkts * 1e6 / static_cast<double>(rate.interval_us);
      best_delivered_ = std::max(best_delivered_, delivered_pkts_per_s * mss_bytes_);
    }
    MonitorInterval m;
    while (monitor_.take(m, srtt_us_)) {
      heed_window(m);
      if (m.trial == MonitorInterval::kNoTrial) continue;
      utilities_[static_cast<std::size_t>(m.trial)] = law_.utility(m);
      if (++known_ < plan_.trials) continue;
      law_.limit(std::max(kMostOfDelivered * best_delivered_, kMinBytesPerS));
      adopt(law_.next(utilities_, random_));
    }
    set_window(w);
  }

  std::uint32_t on_loss(const Window& w, LossCause) { return w.ssthresh_pkts; }

  void on_packet_sent(Us) { monitor_.on_sent(); }
  void on_packet_delivered(Us sent_us, Us now_us) { monitor_.on_delivered(sent_us, now_us); }
  void on_packet_lost(Us sent_us) { monitor_.on_lost(sent_us); }

  Us timer_us() const { return interval_end_us_; }
  void on_timer(Window& w, Us now_us, std::uint32_t) {
    if (monitor_.current_is_empty()) {  // nothing could be sent: it says nothing, and goes on
      interval_end_us_ = now_us + interval_us();
      return;
    }
    begin_interval(w, now_us);
  }

  double pacing_bytes_per_s() const { return bytes_per_s_; }
  std::uint32_t min_burst_pkts() const { return 1; }

 private:
  static constexpr std::uint32_t kMinIntervalPkts = 10;  // the first paper's: fewer tell no loss rate
  static constexpr double kMinBytesPerS = 12'500;        // 0.1 Mbit/s: eight full packets a second
  static constexpr double kLimitedBelow = 0.75;          // ten packets more or less are a tenth
  static constexpr double kMostOfDelivered = 2.0;        // a start that doubles is not held up
  static constexpr double kWindowRtts = 2.0;             // the window only bounds what an outage lets pile up

  void adopt(const TrialPlan& plan) {
    plan_ = plan;
    issued_ = known_ = 0;
  }

  // An interval that could not send at its rate, for a cap or because nothing came back, counts with the rate it had.
  void heed_window(MonitorInterval& m) const {
    const double rate = m.sent_pkts * mss_bytes_ * 1e6 / static_cast<double>(m.end_us - m.start_us);
    if (rate < kLimitedBelow * m.bytes_per_s) m.bytes_per_s = rate;
  }

  void begin_interval(Window& w, Us now_us) {
    int trial = MonitorInterval::kNoTrial;
    bytes_per_s_ = plan_.base_bytes_per_s;
    if (issued_ < plan_.trials) {
      trial = static_cast<int>(issued_);
      bytes_per_s_ = plan_.bytes_per_s[issued_++];
    }
    bytes_per_s_ = std::max(bytes_per_s_, kMinBytesPerS);
    monitor_.open(now_us, bytes_per_s_, trial);
    interval_end_us_ = now_us + interval_us();
    set_window(w);
  }

  Us interval_us() {
    const double packets_us = kMinIntervalPkts * mss_bytes_ * 1e6 / bytes_per_s_;
    return static_cast<Us>(std::max(law_.interval_rtts(random_) * srtt_us_, packets_us)) + 1;
  }

  void set_window(Window& w) const {
    const double bdp_pkts = bytes_per_s_ * srtt_us_ * 1e-6 / mss_bytes_;
    w.cwnd_pkts = kInitialWindowPkts + static_cast<std::uint32_t>(kWindowRtts * bdp_pkts);
  }

  Law law_;
  Monitor monitor_;
  SplitMix64 random_{0};
  TrialPlan plan_;
  double best_delivered_ = 0.0;  // bytes/s
  Utilities utilities_{};
  std::size_t issued_ = 0;
  std::size_t known_ = 0;
  std::uint32_t mss_bytes_ = 0;
  std::uint32_t srtt_us_ = 1;
  double bytes_per_s_ = kMinBytesPerS;
  Us interval_end_us_ = kNever;
};

}  // namespace reinet

#endif
