// SPDX-License-Identifier: Apache-2.0
//
// What a sender asks of its congestion control is the kernel's tcp_congestion_ops as a concept, not a base class, so
// that the calls are inlined and what a control does without costs nothing. There are two kinds, as in the kernel:
//
//   WindowControl  says how the window grows while all is well (the kernel's cong_avoid); in recovery the window is the
//                  sender's, for its proportional rate reduction.
//   ModelControl   sees every ACK in every state, with its delivery rate sample, and always owns the window
//                  (the kernel's cong_control).
//
// Either may be Paced, Clocked (has timers of its own) or Tracking (is told of single packets). A new control is one
// header with a class that has a kName and derives from ControlDefaults, and one line in congestion_controls.hpp.
#ifndef REINET_CONGESTION_CONTROL_HPP
#define REINET_CONGESTION_CONTROL_HPP

#include <algorithm>
#include <concepts>
#include <cstdint>

#include "core/cc/clock.hpp"
#include "core/cc/rate_sample.hpp"
#include "core/cc/withheld_window.h"

namespace reinet {

// The kernel's controls that count in jiffies see time in these steps: CONFIG_HZ=250, as Debian and Ubuntu build it.
constexpr Us kJiffyUs = 4'000;

constexpr std::uint32_t kInitialWindowPkts = REINET_INITIAL_CWND_PKTS;

// The part of a connection that congestion control may read and write.
struct Window {
  std::uint32_t cwnd_pkts;
  std::uint32_t ssthresh_pkts;
  // What is delivered until then is limited by the application, by a control's own holding back or, for a ModelControl,
  // by a cap; 0 = nothing is.
  std::uint64_t app_limited_until_pkts = 0;

  bool slow_start() const { return cwnd_pkts < ssthresh_pkts; }
};

// Where the connection stands with losses.
enum class SenderState { kOpen, kRecovery, kLoss };

enum class LossCause { kAcks, kTimeout };

// A connection as it starts; the handshake was its first round trip.
struct Start {
  Us now_us;
  std::uint32_t rtt_us;
  std::uint32_t mss_bytes;
  std::uint32_t target_us;  // the RTT asked for, 0 = none; for controls that aim at one
  std::uint64_t seed;       // for controls that throw dice
};

// A transmission with nothing in flight: after an idle time, and after a timeout that took all for lost.
struct Restart {
  Us now_us;
  Us idle_us;          // since the transmission before
  std::uint32_t next;  // the next new segment
  bool app_limited;
};

// One ACK, and the connection after it.
struct AckEvent {
  Us now_us;
  std::int32_t rtt_us;           // its RTT sample, negative = none
  std::uint32_t una, next;       // first segment outstanding, and the next new one
  std::uint32_t acked_pkts;      // cumulatively acknowledged, some of them selectively before
  std::uint32_t delivered_pkts;  // for the first time, cumulatively or selectively
  std::uint32_t lost_pkts;       // newly deemed lost
  std::uint32_t prior_in_flight_pkts, in_flight_pkts;
  std::uint64_t delivered_total_pkts, lost_total_pkts;
  std::uint32_t srtt_us, min_rtt_us;  // min_rtt_us: of the flow's life
  Us pace_wait_us;                    // until the next paced burst may leave
  bool window_limited;                // the window, not the application, limits the flow
  bool in_order;                      // the ACK advanced, and says nothing of holes
  SenderState state;
};

// The events that not every control cares about. A control hides those that it does.
struct ControlDefaults {
  // Whether its own implementation is a transport over datagrams, whose receiver acknowledges each packet at once, by
  // itself, and whose sender takes a packet for lost when a later one was acknowledged. TCP's receiver delays ACKs.
  static constexpr bool kAckedSingly = false;
  // Its window is what is in flight and what may be sent beyond that, once.
  static constexpr bool kGrantsPackets = false;
  // The size of that implementation's datagrams as IP packets; the path's are no larger for its flows.
  static constexpr std::uint32_t kMostIpBytes = ~0U;

  void on_start(Window&, const Start&) {}
  // An ACK, in every state, before the state follows from it (pkts_acked and in_ack_event).
  void on_sample(Window&, const AckEvent&) {}
  // The connection enters that state, after on_loss if a loss is why; kLoss also when a timeout comes on top of
  // another. Only the totals and the time of the event are meaningful.
  void on_state(SenderState, const AckEvent&) {}
  // Recovery has brought the window to ssthresh; only for WindowControl.
  void on_recovered(Window&) {}
  // The reduction was a mistake: the window to go on with.
  std::uint32_t on_undo(const Window& w, std::uint32_t prior_cwnd_pkts) {
    return std::max(w.cwnd_pkts, prior_cwnd_pkts);
  }
  // Data goes out with nothing in flight.
  void on_restart(Window&, const Restart&) {}
};

template <class C>
concept CongestionControlBase =
    std::default_initializable<C> && requires(C c, Window& w, const Window& read, const AckEvent& ack,
                                              const Start& start, const Restart& restart, std::uint32_t pkts) {
      { C::kName } -> std::convertible_to<const char*>;
      { C::kAckedSingly } -> std::convertible_to<bool>;
      { C::kMostIpBytes } -> std::convertible_to<std::uint32_t>;
      c.on_start(w, start);
      c.on_sample(w, ack);
      // A loss: returns the new ssthresh.
      { c.on_loss(read, LossCause::kAcks) } -> std::same_as<std::uint32_t>;
      c.on_state(SenderState::kOpen, ack);
      c.on_recovered(w);
      { c.on_undo(read, pkts) } -> std::same_as<std::uint32_t>;
      c.on_restart(w, restart);
    };

template <class C>
concept WindowControl = CongestionControlBase<C> && requires(C c, Window& w, const AckEvent& ack) {
  // Newly delivered packets outside recovery, where the ACK advanced.
  c.on_delivered(w, ack);
};

template <class C>
concept ModelControl = CongestionControlBase<C> && requires(C c, Window& w, const AckEvent& ack,
                                                            const RateSample& rate) { c.on_ack(w, ack, rate); };

template <class C>
concept CongestionControl = WindowControl<C> != ModelControl<C>;

template <class C>
concept Paced = requires(const C c) {
  { c.pacing_bytes_per_s() } -> std::same_as<double>;
  // Packets that go out back to back, unless a millisecond holds more.
  { c.min_burst_pkts() } -> std::same_as<std::uint32_t>;
};

template <class C>
concept Clocked = requires(const C read, C c, Window& w, Us now_us, std::uint32_t in_flight_pkts) {
  { read.timer_us() } -> std::same_as<Us>;
  c.on_timer(w, now_us, in_flight_pkts);
};

// It has a timeout of its own instead of TCP's: so long after the last ACK all that is out is given up. The window
// stays its; on_timeout() is all that it hears of it.
template <class C>
concept OwnTimeout = requires(const C read, C c, Window& w, Us now_us, std::uint32_t in_flight_pkts) {
  { read.timeout_us() } -> std::same_as<Us>;
  c.on_timeout(w, now_us, in_flight_pkts);  // in flight: too young to be given up
};

// It is told of the cap before each ACK, 0 = none, because it takes it for its window.
template <class C>
concept TakesCap = requires(C c, std::uint32_t cap_pkts) { c.on_cap(cap_pkts); };

// sent_us: the packet's latest transmission.
template <class C>
concept Tracking = requires(C c, Us sent_us, Us now_us) {
  c.on_packet_sent(sent_us);
  c.on_packet_delivered(sent_us, now_us);
  c.on_packet_lost(sent_us);
};

// Many controls share these two: the kernel's tcp_slow_start and tcp_cong_avoid_ai (net/ipv4/tcp_cong.c).

// Grows the window by the packets delivered, up to ssthresh; returns those that are left then (tcp_slow_start).
inline std::uint32_t slow_start(Window& w, std::uint32_t pkts) {
  const std::uint32_t grown_pkts = std::min(w.cwnd_pkts + pkts, w.ssthresh_pkts);
  pkts -= grown_pkts - w.cwnd_pkts;
  w.cwnd_pkts = grown_pkts;
  return pkts;
}

// Counts deliveries, so that the window grows by one packet for so many delivered (tcp_cong_avoid_ai).
class AdditiveIncrease {
 public:
  void add(Window& w, std::uint32_t pkts_per_increase, std::uint32_t pkts) {
    if (credit_pkts_ >= pkts_per_increase) {  // left from a time when more was needed
      credit_pkts_ = 0;
      ++w.cwnd_pkts;
    }
    credit_pkts_ += pkts;
    w.cwnd_pkts += credit_pkts_ / pkts_per_increase;
    credit_pkts_ %= pkts_per_increase;
  }
  void reset() { credit_pkts_ = 0; }

 private:
  std::uint32_t credit_pkts_ = 0;
};

}  // namespace reinet

#endif
