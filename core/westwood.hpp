// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_WESTWOOD_HPP
#define REINET_WESTWOOD_HPP

#include <algorithm>
#include <cstdint>

#include "congestion_control.hpp"
#include "reno.hpp"

namespace reinet {

// Westwood+ (Mascolo et al., 2001; Grieco and Mascolo, 2004): Reno whose window after a loss is the bandwidth seen
// times the minimum RTT. Bandwidth: what was acknowledged per 50 ms or RTT, whichever is longer, through two low-pass
// filters. Times are in microseconds, where the kernel has ticks.
class Westwood : public ControlDefaults {
 public:
  static constexpr const char* kName = "westwood";

  void on_start(Window&, const Start& start) { window_start_us_ = start.now_us; }

  void on_sample(Window&, const AckEvent& ack) {
    close_window(ack.now_us);
    window_pkts_ += ack.in_order ? ack.acked_pkts : counted_pkts(ack.acked_pkts);
    min_rtt_us_ = forget_min_rtt_ ? rtt_us_ : std::min(min_rtt_us_, rtt_us_);
    forget_min_rtt_ = false;
    if (ack.rtt_us > 0) rtt_us_ = static_cast<std::uint32_t>(ack.rtt_us);  // counts from the next ACK on
  }

  void on_delivered(Window& w, const AckEvent& ack) { reno_.on_delivered(w, ack); }

  std::uint32_t on_loss(const Window& w, LossCause cause) {
    if (cause == LossCause::kAcks) return reno_.on_loss(w, cause);
    forget_min_rtt_ = true;
    return bdp_pkts();
  }

  void on_recovered(Window& w) { w.cwnd_pkts = w.ssthresh_pkts = bdp_pkts(); }
  void on_state(SenderState state, const AckEvent& ack) { reno_.on_state(state, ack); }

 private:
  static constexpr Us kMinWindowUs = 50'000;
  static constexpr std::uint32_t kInitialRttUs = 20'000'000;  // until there is a sample

  std::uint32_t bdp_pkts() const { return std::max(static_cast<std::uint32_t>(bw_pkts_per_us_ * min_rtt_us_), 2U); }

  // A window of measurement ends: its rate goes through the filters.
  void close_window(Us now_us) {
    const Us length_us = now_us - window_start_us_;
    if (length_us <= std::max<Us>(rtt_us_, kMinWindowUs)) return;
    const double rate = static_cast<double>(window_pkts_) / static_cast<double>(length_us);
    if (bw_pkts_per_us_ == 0.0 && once_filtered_ == 0.0) {
      bw_pkts_per_us_ = once_filtered_ = rate;
    } else {
      once_filtered_ = (7 * once_filtered_ + rate) / 8;
      bw_pkts_per_us_ = (7 * bw_pkts_per_us_ + once_filtered_) / 8;
    }
    window_pkts_ = 0;
    window_start_us_ = now_us;
  }

  // A duplicate ACK stands for a packet, which the cumulative ACK that follows does not tell anew.
  std::uint32_t counted_pkts(std::uint32_t acked_pkts) {
    if (acked_pkts == 0) {
      ++told_pkts_;
      return 1;
    }
    if (acked_pkts == 1) return 1;
    if (told_pkts_ >= acked_pkts) {
      told_pkts_ -= acked_pkts;
      return 1;
    }
    acked_pkts -= told_pkts_;
    told_pkts_ = 0;
    return acked_pkts;
  }

  Reno reno_;
  double bw_pkts_per_us_ = 0.0;
  double once_filtered_ = 0.0;
  std::uint64_t window_pkts_ = 0;  // acknowledged in this window
  Us window_start_us_ = 0;
  std::uint32_t told_pkts_ = 0;  // by duplicate ACKs
  std::uint32_t rtt_us_ = kInitialRttUs;
  std::uint32_t min_rtt_us_ = kInitialRttUs;
  bool forget_min_rtt_ = true;
};

}  // namespace reinet

#endif
