// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_WESTWOOD_HPP
#define REINET_WESTWOOD_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/congestion_control.hpp"
#include "core/cc/kernel/reno.hpp"

namespace reinet {

// Westwood+ (Mascolo et al., 2001; Grieco and Mascolo, 2004): Reno whose window after a loss is the bandwidth seen
// times the minimum RTT. The bandwidth is what was acknowledged per 50 ms or RTT, whichever is longer, through two
// low-pass filters. Times are in ticks, as in the kernel's tcp_westwood.c: the minimum RTT is rounded up to 4 ms, and
// the window with it.
class Westwood : public ControlDefaults {
 public:
  static constexpr const char* kName = "westwood";

  void on_start(Window&, const Start& start) { window_start_ = tick(start.now_us); }

  void on_sample(Window&, const AckEvent& ack) {
    close_window(ack.now_us);
    window_pkts_ += ack.in_order ? ack.acked_pkts : counted_pkts(ack.acked_pkts);
    min_rtt_ticks_ = forget_min_rtt_ ? rtt_ticks_ : std::min(min_rtt_ticks_, rtt_ticks_);
    forget_min_rtt_ = false;
    if (ack.rtt_us > 0) rtt_ticks_ = tick(ack.rtt_us + kJiffyUs - 1);  // counts from the next ACK on
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
  static constexpr std::uint32_t kMinWindowTicks = 12;      // TCP_WESTWOOD_RTT_MIN, HZ/20: 50 ms, rounded down
  static constexpr std::uint32_t kInitialRttTicks = 5'000;  // TCP_WESTWOOD_INIT_RTT: 20 s, until there is a sample

  static std::uint32_t tick(Us us) { return static_cast<std::uint32_t>(us / kJiffyUs); }

  std::uint32_t bdp_pkts() const {
    return std::max(static_cast<std::uint32_t>(bw_pkts_per_tick_ * min_rtt_ticks_), 2U);
  }

  // A window of measurement ends: its rate goes through the filters, each 7/8 old and 1/8 new (westwood_do_filter).
  void close_window(Us now_us) {
    const std::uint32_t length_ticks = tick(now_us) - window_start_;
    if (length_ticks <= std::max(rtt_ticks_, kMinWindowTicks)) return;
    const double rate = static_cast<double>(window_pkts_) / length_ticks;
    if (bw_pkts_per_tick_ == 0.0 && once_filtered_ == 0.0) {
      bw_pkts_per_tick_ = once_filtered_ = rate;
    } else {
      once_filtered_ = (7 * once_filtered_ + rate) / 8;
      bw_pkts_per_tick_ = (7 * bw_pkts_per_tick_ + once_filtered_) / 8;
    }
    window_pkts_ = 0;
    window_start_ = tick(now_us);
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
  double bw_pkts_per_tick_ = 0.0;
  double once_filtered_ = 0.0;
  std::uint64_t window_pkts_ = 0;   // acknowledged in this window
  std::uint32_t window_start_ = 0;  // its tick
  std::uint32_t told_pkts_ = 0;     // by duplicate ACKs
  std::uint32_t rtt_ticks_ = kInitialRttTicks;
  std::uint32_t min_rtt_ticks_ = kInitialRttTicks;
  bool forget_min_rtt_ = true;
};

}  // namespace reinet

#endif
