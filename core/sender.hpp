// SPDX-License-Identifier: Apache-2.0
//
// A bulk TCP sender that behaves like Linux's: SACK, RACK and loss probe (RFC 8985), proportional rate reduction (RFC
// 6937), timeouts with back-off (RFC 6298) and their undoing (Eifel, RFC 4015; F-RTO, RFC 5682), a pluggable congestion
// control, and reinet's cap where the BPF shim puts it. Not modelled: ECN, reordering, undo from D-SACK, pacing.
//
//            loss detected                     timeout (from any state)
//   kOpen ----------------> kRecovery    ... ----------------> kLoss
//     ^  all sent before acknowledged |                          |
//     +-------------------------------+--------------------------+ or the timeout was spurious
#ifndef REINET_SENDER_HPP
#define REINET_SENDER_HPP

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "congestion_control.hpp"
#include "flow_stats.h"
#include "link.hpp"
#include "receiver.hpp"
#include "rtt.hpp"
#include "scoreboard.hpp"

namespace reinet {

template <CongestionControl Control>
class Sender {
 public:
  explicit Sender(std::uint32_t mss_bytes) : mss_bytes_(mss_bytes) {}

  // Takes an ACK. observe(reinet_ack) is called where the kernel calls pkts_acked: counters, scoreboard and RTT are up
  // to date, the window is not yet. send(seq, sent_us) puts a segment onto the path; so in the other members.
  template <class Observe, class Send>
  void on_ack(const Ack& ack, Us now_us, std::uint32_t cap_pkts, Observe&& observe, Send&& send) {
    const std::uint64_t lost_before_pkts = board_.lost_total_pkts();
    const Delivery d = board_.deliver(ack.next_seq, ack.sack_begin, ack.sack_end, recovery_end_, now_us, rtt_.min_us());
    const std::int32_t rtt_us = take_rtt(d, ack, now_us);
    if (d.una_advanced) timeouts_ = 0;
    if (board_.una() > probe_seq_) probing_ = false;
    observe(snapshot(now_us, rtt_us));
    if (rtt_us >= 0)
      control_.on_rtt(window_, now_us, static_cast<std::uint32_t>(rtt_us), board_.una(), board_.next());

    update_state(d, ack, now_us);
    const bool newly_lost = board_.lost_total_pkts() != lost_before_pkts;
    if (state_ == State::kRecovery)
      reduce_window(d.pkts, d.una_advanced && !newly_lost);
    else if (d.una_advanced && window_limited_)
      control_.on_delivered(window_, now_us, d.pkts);
    apply_cap(cap_pkts);
    transmit(now_us, send);
    if (d.una_advanced) arm(now_us);
  }

  // The handshake is done, and was the first round trip.
  template <class Send>
  void start(Us now_us, std::uint32_t rtt_us, Send&& send) {
    rtt_.add(rtt_us, board_.una(), board_.next());
    transmit(now_us, send);
    arm(now_us);
  }

  Us timer_us() const { return std::min(retransmit_us_, reorder_us_); }

  template <class Send>
  void on_timer(Us now_us, Send&& send) {
    if (reorder_us_ <= now_us)
      on_reordering_timeout(now_us, send);
    else if (probe_armed_)
      probe(now_us, send);
    else
      on_timeout(now_us, send);
  }

  bool outstanding() const { return !board_.empty(); }
  std::uint32_t min_rtt_us() const { return rtt_.min_us(); }

 private:
  enum class State { kOpen, kRecovery, kLoss };

  static constexpr std::uint32_t kInitialWindowPkts = 10;
  static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::int32_t>::max();
  static constexpr std::uint32_t kDuplicateThreshold = 3;
  // A stock kernel's send buffer, 4 MiB (tcp_wmem), at 2304 bytes of memory per segment.
  static constexpr std::uint32_t kMaxOutPkts = 1820;
  static constexpr Us kTickUs = 1000;  // of the kernel's timers, at HZ = 1000
  static constexpr Us kMaxTimeoutUs = 120'000'000;

  // The ACK's RTT sample, negative for none: from the last never-retransmitted segment that it delivers, else from the
  // timestamp that it echoes, which is that of the transmission that arrived.
  std::int32_t take_rtt(const Delivery& d, const Ack& ack, Us now_us) {
    std::optional<Us> sent_us = d.sacked_sent_us ? d.sacked_sent_us : d.acked_sent_us;
    if (!sent_us && d.una_advanced) sent_us = ack.echo_us;
    if (!sent_us) return -1;
    const auto rtt_us = static_cast<std::uint32_t>(now_us - *sent_us);
    rtt_.add(rtt_us, board_.una(), board_.next());
    backoff_ = 0;
    return static_cast<std::int32_t>(rtt_us);
  }

  reinet_ack snapshot(Us now_us, std::int32_t rtt_us) const {
    reinet_ack a{};
    a.time_ns = now_us * 1000;
    a.newest_acked_sent_ns = board_.newest_delivered_sent_us() * 1000;
    a.delivered_bytes = board_.delivered_total_pkts() * mss_bytes_;
    a.lost_bytes = board_.lost_total_pkts() * mss_bytes_;
    a.retrans_bytes = retransmitted_pkts_ * mss_bytes_;
    a.pacing_rate_bytes_per_s = pacing_rate_bytes_per_s();
    a.rtt_us = rtt_us;
    a.srtt_us = rtt_.srtt_us();
    a.min_rtt_us = rtt_.min_us();
    a.cwnd_pkts = window_.cwnd_pkts;
    a.ssthresh_pkts = window_.ssthresh_pkts;
    a.inflight_pkts = board_.in_flight_pkts();
    a.mss_bytes = mss_bytes_;
    if (state_ != State::kOpen) a.flags |= REINET_FLAG_IN_RECOVERY;
    if (window_.slow_start()) a.flags |= REINET_FLAG_SLOW_START;
    return a;
  }

  // Only reported: without fq, Cubic is not paced. The kernel's factors, 2 in early slow start and 1.2 after it.
  std::uint64_t pacing_rate_bytes_per_s() const {
    if (!rtt_.known()) return std::numeric_limits<std::uint64_t>::max();
    const double factor = window_.cwnd_pkts < window_.ssthresh_pkts / 2 ? 2.0 : 1.2;
    const double window_bytes = static_cast<double>(std::max(window_.cwnd_pkts, board_.out_pkts())) * mss_bytes_;
    return static_cast<std::uint64_t>(factor * window_bytes * 1e6 / std::max(rtt_.srtt_us(), 1U));
  }

  // ---- loss recovery

  void update_state(const Delivery& d, const Ack& ack, Us now_us) {
    if (state_ == State::kRecovery && board_.una() >= recovery_end_) {
      window_.cwnd_pkts = window_.ssthresh_pkts;
      open();
    } else if (state_ == State::kLoss) {
      leave_loss(d, ack);
    }
    const std::uint64_t lost_before_pkts = board_.lost_total_pkts();
    const bool was_retransmitting = board_.is_retransmitting();
    if (d.pkts > 0 && board_.has_holes()) detect_losses(now_us);
    if (!board_.has_holes()) reorder_us_ = kNever;
    const bool lost_retransmission = was_retransmitting && board_.lost_total_pkts() != lost_before_pkts;
    if (board_.has_lost() && (state_ == State::kOpen || (state_ == State::kLoss && lost_retransmission)))
      enter_recovery();
  }

  void detect_losses(Us now_us) {
    // No reordering is ever seen here: wait only while fewer than three segments beyond the hole have arrived.
    const bool certain = state_ != State::kOpen || board_.sacked_pkts() >= kDuplicateThreshold;
    const Us reordering_us = certain ? 0 : std::min(rtt_.min_us() / 4, rtt_.srtt_us() / 8);
    reorder_us_ = board_.detect_losses(now_us, reordering_us);
  }

  // A segment that might have been late is lost; no ACK told so, but one is owed to the window's reduction.
  template <class Send>
  void on_reordering_timeout(Us now_us, Send&& send) {
    detect_losses(now_us);
    if (board_.has_lost() && state_ == State::kOpen) {
      enter_recovery();
      reduce_window(1, false);
    }
    transmit(now_us, send);
  }

  void enter_recovery() {
    prior_cwnd_pkts_ = window_.cwnd_pkts;
    window_.ssthresh_pkts = control_.on_loss(window_);
    control_.on_recovery();
    recovery_end_ = board_.next();
    prr_delivered_pkts_ = prr_sent_pkts_ = 0;
    probing_ = may_undo_ = forward_rto_ = false;
    state_ = State::kRecovery;
  }

  // Proportional rate reduction: the window falls to ssthresh over one round trip, in step with what is delivered, and
  // slow-starts back up to it if losses took it below. progress: the ACK advanced and showed no further loss.
  void reduce_window(std::uint32_t delivered_pkts, bool progress) {
    if (delivered_pkts == 0) return;
    prr_delivered_pkts_ += delivered_pkts;
    const std::int64_t in_flight = board_.in_flight_pkts();
    const std::int64_t ssthresh = window_.ssthresh_pkts;
    std::int64_t allowed;
    if (in_flight > ssthresh) {
      const std::int64_t share = (ssthresh * prr_delivered_pkts_ + prior_cwnd_pkts_ - 1) / prior_cwnd_pkts_;
      allowed = share - prr_sent_pkts_;
    } else {
      const std::int64_t owed = std::max<std::int64_t>(prr_delivered_pkts_ - prr_sent_pkts_, delivered_pkts);
      allowed = std::min(owed + (progress ? 1 : 0), ssthresh - in_flight);
    }
    allowed = std::max<std::int64_t>(allowed, prr_sent_pkts_ > 0 ? 0 : 1);  // the first retransmission always goes out
    window_.cwnd_pkts = static_cast<std::uint32_t>(in_flight + allowed);
  }

  template <class Send>
  void on_timeout(Us now_us, Send&& send) {
    board_.mark_timed_out(now_us);
    forward_rto_ = state_ == State::kOpen || timeouts_ > 0;
    // A timeout on top of a recovery or another timeout reduces, and remembers what to restore, no second time.
    if (state_ == State::kOpen || (state_ == State::kLoss && timeouts_ == 0)) {
      // ssthresh, or what a window that has grown above it is worth
      prior_ssthresh_pkts_ = std::max(window_.ssthresh_pkts, window_.cwnd_pkts / 2 + window_.cwnd_pkts / 4);
      prior_cwnd_pkts_ = window_.cwnd_pkts;
      window_.ssthresh_pkts = control_.on_loss(window_);
      may_undo_ = true;
    }
    control_.on_timeout();
    window_.cwnd_pkts = board_.in_flight_pkts() + 1;
    recovery_end_ = board_.next();
    state_ = State::kLoss;
    probing_ = false;
    reorder_us_ = kNever;
    ++timeouts_;
    if (board_.has_retransmission()) resend(now_us, send);
    ++backoff_;
    retransmit_us_ = now_us + timeout_us();
  }

  void leave_loss(const Delivery& d, const Ack& ack) {
    // Eifel: the ACK echoes a timestamp from before the first retransmission, so the original arrived.
    const bool original_arrived = d.una_advanced && ack.echo_us < first_retransmission_us_;
    // F-RTO: so it did if a segment sent before the timeout and never since is delivered.
    if (may_undo_ && (original_arrived || (forward_rto_ && d.original_below_limit))) {
      board_.unmark_lost();
      window_.cwnd_pkts = std::max(window_.cwnd_pkts, prior_cwnd_pkts_);
      window_.ssthresh_pkts = std::max(window_.ssthresh_pkts, prior_ssthresh_pkts_);
      open();
      return;
    }
    if (board_.una() >= recovery_end_) {
      open();
      return;
    }
    if (!forward_rto_) return;
    if (board_.next() > recovery_end_) {
      forward_rto_ = !d.sacked_new;  // new data got through beside the hole: the loss was real
    } else if (d.una_advanced) {
      recovery_end_ = board_.next();
      new_data_first_ = true;  // two new segments will tell whether it was
    }
  }

  void open() {
    state_ = State::kOpen;
    may_undo_ = forward_rto_ = false;
    first_retransmission_us_ = kNever;
  }

  // ---- transmission

  // As in the shim: after congestion control, but the window belongs to PRR until recovery ends.
  void apply_cap(std::uint32_t cap_pkts) {
    if (cap_pkts && state_ != State::kRecovery) window_.cwnd_pkts = std::min(window_.cwnd_pkts, cap_pkts);
  }

  template <class Send>
  void transmit(Us now_us, Send&& send) {
    const bool new_data_first = std::exchange(new_data_first_, false);
    if (new_data_first) send_new(now_us, send);
    if (!new_data_first || board_.next() == recovery_end_) {
      if (new_data_first) forward_rto_ = false;
      while (board_.has_retransmission() && has_room()) resend(now_us, send);
    }
    send_new(now_us, send);
    window_limited_ = !has_room();
  }

  bool has_room() const { return board_.in_flight_pkts() < window_.cwnd_pkts; }

  template <class Send>
  void send_new(Us now_us, Send&& send) {
    bool sent = false;
    for (; has_room() && board_.out_pkts() < kMaxOutPkts; sent = true) {
      send(board_.send_new(now_us), now_us);
      ++prr_sent_pkts_;
    }
    if (sent && state_ == State::kOpen && !board_.has_holes()) arm(now_us);
  }

  template <class Send>
  void resend(Us now_us, Send&& send) {
    const std::uint32_t seq = board_.retransmit(now_us);
    send(seq, now_us);
    ++prr_sent_pkts_;
    ++retransmitted_pkts_;
    first_retransmission_us_ = std::min(first_retransmission_us_, now_us);
    if (seq == board_.una()) arm(now_us);
  }

  // ---- timers

  Us timeout_us() const {
    Us timeout_us = rtt_.timeout_us();
    for (std::uint32_t i = 0; i < backoff_ && timeout_us < kMaxTimeoutUs; ++i) timeout_us *= 2;
    return std::min(timeout_us, kMaxTimeoutUs);
  }

  // In the open state a loss probe comes first, after two round trips; it never delays the timeout.
  void arm(Us now_us) {
    probe_armed_ = false;
    if (board_.empty()) {
      retransmit_us_ = kNever;
      return;
    }
    retransmit_us_ = now_us + timeout_us();
    if (state_ != State::kOpen || !rtt_.known() || board_.has_holes()) return;
    const Us wait_us = 2 * Us{rtt_.srtt_us()} +
                       (board_.out_pkts() == 1 ? static_cast<Us>(RttEstimator::kMinVariationUs) : 2 * kTickUs);
    const Us expiry_us = std::max(board_.head_sent_us() + timeout_us(), now_us + kTickUs);
    retransmit_us_ = std::min(now_us + wait_us, expiry_us);
    probe_armed_ = true;
  }

  // One segment beyond the window: its ACK shows a lost tail, or that the path is alive. The timeout then starts anew.
  template <class Send>
  void probe(Us now_us, Send&& send) {
    probe_armed_ = false;
    if (probing_ || board_.out_pkts() >= kMaxOutPkts) {
      retransmit_us_ = std::max(board_.head_sent_us() + timeout_us(), now_us + kTickUs);
      return;
    }
    probing_ = true;
    probe_seq_ = board_.send_new(now_us);
    send(probe_seq_, now_us);
    retransmit_us_ = now_us + timeout_us();
  }

  std::uint32_t mss_bytes_;
  Window window_{kInitialWindowPkts, kUnlimited};
  Control control_;
  Scoreboard board_;
  RttEstimator rtt_;
  State state_ = State::kOpen;
  std::uint32_t recovery_end_ = 0;  // recovery ends when all below is acknowledged
  std::uint32_t prior_cwnd_pkts_ = 0;
  std::uint32_t prior_ssthresh_pkts_ = 0;
  std::int64_t prr_delivered_pkts_ = 0;
  std::int64_t prr_sent_pkts_ = 0;
  std::uint32_t timeouts_ = 0;  // since the last progress
  std::uint32_t backoff_ = 0;   // doublings of the timeout
  std::uint64_t retransmitted_pkts_ = 0;
  Us first_retransmission_us_ = kNever;
  Us retransmit_us_ = kNever;  // of the loss probe if that is armed, else of the timeout
  Us reorder_us_ = kNever;
  std::uint32_t probe_seq_ = 0;
  bool probe_armed_ = false;
  bool probing_ = false;
  bool may_undo_ = false;
  bool forward_rto_ = false;
  bool new_data_first_ = false;
  bool window_limited_ = true;
};

}  // namespace reinet

#endif
