// SPDX-License-Identifier: Apache-2.0
//
// A TCP sender like Linux's: SACK, RACK and loss probe (RFC 8985), proportional rate reduction (RFC 6937), timeouts
// with back-off (RFC 6298) and their undoing (Eifel, RFC 4015; F-RTO, RFC 5682), pacing, any congestion control, and
// reinet's cap where the BPF shim puts it. Not modelled: ECN, reordering, undo from D-SACK, TSO deferral.
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
#include <type_traits>
#include <utility>

#include "core/cc/capped_window.hpp"
#include "core/cc/clock.hpp"
#include "core/cc/congestion_control.hpp"
#include "core/cc/pacer.hpp"
#include "core/cc/rtt.hpp"
#include "core/flow_stats.h"
#include "envs/sim/tcp/application.hpp"
#include "envs/sim/tcp/loss_probe.hpp"
#include "envs/sim/tcp/rate_reduction.hpp"
#include "envs/sim/tcp/rate_sampler.hpp"
#include "envs/sim/tcp/receiver.hpp"
#include "envs/sim/tcp/retransmission_timer.hpp"
#include "envs/sim/tcp/scoreboard.hpp"
#include "envs/sim/tcp/snapshot.hpp"
#include "envs/sim/tcp/window_usage.hpp"

namespace reinet {

template <CongestionControl Control>
class Sender {
 public:
  // target_us: the RTT asked for, for controls that aim at one, 0 = none. seed: of those that throw dice.
  Sender(std::uint32_t mss_bytes, const Application& application, std::uint32_t target_us, std::uint64_t seed)
      : mss_bytes_(mss_bytes), target_us_(target_us), seed_(seed), application_(application) {}

  // Takes an ACK. observe(write) is called where the kernel calls pkts_acked: counters, scoreboard and RTT are up to
  // date, the window is not yet; write(reinet_ack&) tells all of them. send(seq, sent_us) puts a segment onto the path;
  // so in the other members.
  template <class Observe, class Send>
  void on_ack(const Ack& ack, Us now_us, std::uint32_t cap_pkts, Observe&& observe, Send&& send) {
    heard_us_ = now_us;
    const std::uint64_t lost_before_pkts = board_.lost_total_pkts();
    const std::uint32_t prior_in_flight_pkts = board_.in_flight_pkts();
    const Delivery d = board_.deliver(ack.next_seq, ack.sack_begin, ack.sack_end, recovery_end_, now_us, rtt_.min_us(),
                                      [&](std::uint32_t seq, Us sent_us) { note_delivered(seq, sent_us, now_us); });
    const std::int32_t rtt_us = take_rtt(d, ack, now_us);
    if (d.una_advanced()) {
      timeouts_ = 0;
      application_.on_acknowledged(board_.una(), now_us);
    }
    observe([&](reinet_ack& a) { write_snapshot(a, now_us, rtt_us); });
    AckEvent event = totals(now_us);
    event.rtt_us = rtt_us;
    event.acked_pkts = d.acked_pkts;
    event.delivered_pkts = d.pkts;
    event.prior_in_flight_pkts = prior_in_flight_pkts;
    event.window_limited = usage_.limited(window_);
    event.in_order = d.una_advanced() && !d.sacked_new && !board_.has_holes();
    cap_.on_ack(event);
    control_.on_sample(window_, event);

    if (probe_.out() && probe_.shows_loss(board_.una(), ack.duplicate_end)) [[unlikely]] {
      enter_recovery(now_us);
      leave_recovery(now_us);  // it is mended
    }
    if (state_ != State::kOpen || board_.has_holes()) [[unlikely]]
      update_state(d, ack, now_us);
    else
      reorder_us_ = kNever;
    event.state = state_;
    event.lost_pkts = static_cast<std::uint32_t>(board_.lost_total_pkts() - lost_before_pkts);
    event.lost_total_pkts = board_.lost_total_pkts();
    event.in_flight_pkts = board_.in_flight_pkts();
    if (window_.app_limited_until_pkts < event.delivered_total_pkts) window_.app_limited_until_pkts = 0;
    if constexpr (TakesCap<Control>) control_.on_cap(cap_pkts);
    const std::uint32_t in_force_pkts = window_.cwnd_pkts;
    if constexpr (ModelControl<Control>) {
      control_.on_ack(window_, event, rates_.take(board_.una(), event.delivered_total_pkts, now_us, rtt_.min_us()));
    } else if (state_ == State::kRecovery) {
      reduction_.on_delivered(window_, event.in_flight_pkts, d.pkts, d.una_advanced() && event.lost_pkts == 0);
    } else if (d.una_advanced()) {
      control_.on_delivered(window_, event);
    }
    cap_.set(cap_pkts);
    cap_.apply(window_, control_, event, rtt_.timeout_us(), in_force_pkts);
    transmit(now_us, send, d.una_advanced());
  }

  // The handshake is done, and was the first round trip.
  template <class Send>
  [[gnu::noinline]] void start(Us now_us, std::uint32_t rtt_us, Send&& send) {
    rtt_.add(rtt_us, board_.una(), board_.next());
    control_.on_start(window_, {now_us, rtt_us, mss_bytes_, target_us_, seed_});
    application_.start(now_us);
    last_sent_us_ = now_us;
    transmit(now_us, send, true);
  }

  Us timer_us() const {
    Us us = std::min({timer_.due_us(), reorder_us_, application_.next_us()});
    if constexpr (Paced<Control>) us = std::min(us, pace_us_);
    if constexpr (Clocked<Control>) us = std::min(us, control_.timer_us());
    return us;
  }

  template <class Send>
  [[gnu::noinline]] void on_timer(Us now_us, Send&& send) {
    if (application_.next_us() <= now_us) {
      on_write(now_us, send);
    } else if (reorder_us_ <= now_us) {
      on_reordering_timeout(now_us, send);
    } else if (timer_.due_us() <= now_us) {
      timer_.is_probe() ? probe(now_us, send) : on_timeout(now_us, send);
    } else {
      if constexpr (Clocked<Control>) {
        if (control_.timer_us() <= now_us) control_.on_timer(window_, now_us, board_.in_flight_pkts());
        cap_.apply(window_, control_, totals(now_us), rtt_.timeout_us(), window_.cwnd_pkts);
      }
      transmit(now_us, send);  // also when it was the pacer's time
    }
  }

  void lift_cap() { cap_.set(0); }  // until the next ACK
  bool outstanding() const { return !board_.empty(); }
  // A finite flow whose every segment has been acknowledged.
  bool finished() const { return board_.empty() && application_.all_sent(board_.next()); }
  std::uint32_t min_rtt_us() const { return rtt_.min_us(); }
  const Application& application() const { return application_; }
  const Window& window() const { return window_; }
  std::size_t heap_bytes() const { return board_.heap_bytes() + rates_.heap_bytes(); }

 private:
  using State = SenderState;

  static constexpr std::uint32_t kDuplicateThreshold = 3;
  // A stock kernel's send buffer, 4 MiB (tcp_wmem), at 2304 bytes of memory per segment.
  static constexpr std::uint32_t kMaxOutPkts = 1820;

  // What every event says.
  AckEvent totals(Us now_us) const {
    AckEvent event{};
    event.now_us = now_us;
    event.rtt_us = -1;
    event.una = board_.una();
    event.next = board_.next();
    event.in_flight_pkts = event.prior_in_flight_pkts = board_.in_flight_pkts();
    event.delivered_total_pkts = board_.delivered_total_pkts();
    event.lost_total_pkts = board_.lost_total_pkts();
    event.srtt_us = rtt_.srtt_us();
    event.min_rtt_us = rtt_.min_us();
    if constexpr (Paced<Control>) event.pace_wait_us = pacer_.wait_us(now_us);
    event.state = state_;
    return event;
  }

  void note_delivered([[maybe_unused]] std::uint32_t seq, [[maybe_unused]] Us sent_us, [[maybe_unused]] Us now_us) {
    if constexpr (ModelControl<Control>) rates_.on_delivered(seq, sent_us, now_us);
    if constexpr (Tracking<Control>) control_.on_packet_delivered(sent_us, now_us);
  }

  auto note_lost() {
    return [this]([[maybe_unused]] Us sent_us) {
      if constexpr (Tracking<Control>) control_.on_packet_lost(sent_us);
    };
  }

  // The ACK's RTT sample, negative for none: of the last never-retransmitted segment that it delivers, of the first for
  // the smoothed RTT (tcp_clean_rtx_queue); else of the echoed timestamp, that of the transmission that arrived.
  std::int32_t take_rtt(const Delivery& d, const Ack& ack, Us now_us) {
    Us first_us = d.first_sent_us(), latest_us = d.latest_sent_us();
    if (latest_us == kNever && d.una_advanced()) first_us = latest_us = ack.echo_us;
    if (latest_us == kNever) return -1;
    const std::uint32_t rtt_us = RttEstimator::sample_us(latest_us, now_us);
    rtt_.add(RttEstimator::sample_us(first_us, now_us), board_.una(), board_.next(), rtt_us);
    timer_.on_sample();
    return static_cast<std::int32_t>(rtt_us);
  }

  void write_snapshot(reinet_ack& a, Us now_us, std::int32_t rtt_us) const {
    tell(a, now_us, rtt_us, mss_bytes_, retransmitted_pkts_, control_, window_, board_, rtt_);
    a.flags |= REINET_FLAG_IN_RECOVERY * (state_ != State::kOpen);
    if (cap_.limits(window_)) a.flags &= ~std::uint32_t{REINET_FLAG_APP_LIMITED};
  }

  // ---- loss recovery

  // Where all is well there is nothing to do.
  [[gnu::noinline]] void update_state(const Delivery& d, const Ack& ack, Us now_us) {
    if (state_ == State::kRecovery && board_.una() >= recovery_end_)
      leave_recovery(now_us);
    else if (state_ == State::kLoss)
      leave_loss(d, ack, now_us);
    const std::uint64_t lost_before_pkts = board_.lost_total_pkts();
    const bool was_retransmitting = board_.is_retransmitting();
    if (d.pkts > 0 && board_.has_holes()) detect_losses(now_us);
    if (!board_.has_holes()) reorder_us_ = kNever;
    const bool lost_retransmission = was_retransmitting && board_.lost_total_pkts() != lost_before_pkts;
    if (board_.has_lost() && (state_ == State::kOpen || (state_ == State::kLoss && lost_retransmission)))
      enter_recovery(now_us);
  }

  void detect_losses(Us now_us) {
    // No reordering is ever seen here: wait only while fewer than three segments beyond the hole have arrived, as long
    // as tcp_rack_reo_wnd without D-SACKs; what bounds that after some, the smoothed RTT, is never less.
    const bool certain = Control::kAckedSingly || state_ != State::kOpen || board_.sacked_pkts() >= kDuplicateThreshold;
    const Us reordering_us = certain ? 0 : rtt_.min_us() / 4;
    reorder_us_ = board_.detect_losses(now_us, reordering_us, note_lost());
  }

  // A segment that might have been late is lost; no ACK told so, but one is owed to the window's reduction.
  template <class Send>
  void on_reordering_timeout(Us now_us, Send&& send) {
    detect_losses(now_us);
    if (board_.has_lost() && state_ == State::kOpen) {
      enter_recovery(now_us);
      if constexpr (WindowControl<Control>) reduction_.on_delivered(window_, board_.in_flight_pkts(), 1, false);
    }
    transmit(now_us, send);
  }

  void enter_recovery(Us now_us) {
    reduction_.start(window_.cwnd_pkts);
    reduce(LossCause::kAcks);
    control_.on_state(State::kRecovery, totals(now_us));
    recovery_end_ = board_.next();
    probe_.forget();
    state_ = State::kRecovery;
  }

  // A loss; what it takes may be undone when a timeout proves to have been for nothing, its own or one in its recovery.
  void reduce(LossCause cause) {
    prior_ssthresh_pkts_ = WindowUsage::worth(window_);
    prior_cwnd_pkts_ = window_.cwnd_pkts;
    window_.ssthresh_pkts = cap_.on_loss(control_, window_, cause);
  }

  void leave_recovery(Us now_us) {
    if constexpr (WindowControl<Control>) {
      window_.cwnd_pkts = window_.ssthresh_pkts;
      control_.on_recovered(window_);
    }
    open(now_us);
  }

  template <class Send>
  void on_timeout(Us now_us, Send&& send) {
    board_.mark_timed_out(now_us, note_lost());
    if constexpr (OwnTimeout<Control>) return give_up(now_us, send);
    forward_rto_ = state_ == State::kOpen || timeouts_ > 0;
    // A timeout on top of a recovery or another timeout reduces, and remembers what to restore, no second time.
    if (state_ == State::kOpen || (state_ == State::kLoss && timeouts_ == 0)) reduce(LossCause::kTimeout);
    control_.on_state(State::kLoss, totals(now_us));
    window_.cwnd_pkts = board_.in_flight_pkts() + 1;
    recovery_end_ = board_.next();
    state_ = State::kLoss;
    probe_.forget();
    reorder_us_ = kNever;
    ++timeouts_;
    if (board_.has_retransmission()) resend(now_us, send);
    timer_.on_timeout(now_us, rtt_);
  }

  // It is the control's own timeout, and the window stays the control's.
  template <class Send>
  void give_up(Us now_us, Send&& send) {
    state_ = State::kLoss;
    recovery_end_ = board_.next();
    heard_us_ = now_us;
    control_.on_timeout(window_, now_us, board_.in_flight_pkts());
    cap_.apply(window_, control_, totals(now_us), rtt_.timeout_us(), window_.cwnd_pkts);
    transmit(now_us, send);
  }

  void leave_loss(const Delivery& d, const Ack& ack, Us now_us) {
    // Eifel: the ACK echoes a timestamp from before the first retransmission, so the original arrived.
    const bool original_arrived = d.una_advanced() && ack.echo_us < first_retransmission_us_;
    // F-RTO: so it did if a segment sent before the timeout and never since is delivered.
    const bool undone = !OwnTimeout<Control> && (original_arrived || (forward_rto_ && d.original_below_limit));
    if (undone) {
      board_.unmark_lost();
      window_.cwnd_pkts = control_.on_undo(window_, prior_cwnd_pkts_);
      window_.ssthresh_pkts = std::max(window_.ssthresh_pkts, prior_ssthresh_pkts_);
    }
    if (undone || board_.una() >= recovery_end_) return open(now_us);
    if (!forward_rto_) return;
    if (board_.next() > recovery_end_) {
      forward_rto_ = !d.sacked_new;  // new data got through beside the hole: the loss was real
    } else if (d.una_advanced()) {
      recovery_end_ = board_.next();
      new_data_first_ = true;  // two new segments will tell whether it was
    }
  }

  void open(Us now_us) {
    state_ = State::kOpen;
    control_.on_state(state_, totals(now_us));
    first_retransmission_us_ = kNever;
  }

  // ---- transmission

  // The application writes. If it let the socket run dry before, what is delivered until now says nothing of the path.
  template <class Send>
  void on_write(Us now_us, Send&& send) {
    if (!application_.has(board_.next()) && has_room() && !board_.has_retransmission())
      window_.app_limited_until_pkts =
          std::max<std::uint64_t>(board_.delivered_total_pkts() + board_.in_flight_pkts(), 1);
    application_.write(now_us);
    if (WindowControl<Control> && board_.empty()) {
      const Us idle_us = now_us - last_sent_us_;
      WindowUsage::restart(window_, idle_us, timer_.timeout_us(rtt_));
      if (reinet_is_pause((now_us - heard_us_) * 1000, rtt_.srtt_us())) cap_.give_back(window_, idle_us);
    }
    transmit(now_us, send);
  }

  // must_arm: the timer starts anew whatever is sent.
  template <class Send>
  void transmit(Us now_us, Send&& send, bool must_arm = false) {
    pace_us_ = kNever;
    const bool new_data_first = std::exchange(new_data_first_, false);
    if (new_data_first) must_arm |= send_new(now_us, send);
    if (!new_data_first || board_.next() == recovery_end_) {
      if (new_data_first) forward_rto_ = false;
      while (board_.has_retransmission() && may_send(now_us)) must_arm |= resend(now_us, send);
    }
    must_arm |= send_new(now_us, send);
    if (last_sent_us_ == now_us || !has_room()) {
      const bool idle = state_ == State::kOpen && !application_.has(board_.next());
      usage_.validate(
          window_, now_us, board_.una(), board_.next(), !has_room(), [&] { return timer_.timeout_us(rtt_); },
          WindowControl<Control> && idle);
    }
    if constexpr (OwnTimeout<Control>)
      timer_.arm_at(board_.empty() ? kNever : heard_us_ + control_.timeout_us());
    else if (must_arm)
      timer_.arm(now_us, rtt_, board_, state_ == State::kOpen && !Control::kAckedSingly);
  }

  bool has_room() const { return board_.in_flight_pkts() < window_.cwnd_pkts; }

  bool may_send(Us now_us) {
    if (!has_room()) return false;
    if constexpr (Paced<Control>) {
      if (!pacer_.may_send(now_us, Pacer::burst_pkts(control_, mss_bytes_))) {
        pace_us_ = pacer_.next_us();
        return false;
      }
    }
    return true;
  }

  // Returns whether the timer is to start anew.
  template <class Send>
  bool send_new(Us now_us, Send&& send) {
    bool sent = false;
    for (; application_.has(board_.next()) && board_.out_pkts() < kMaxOutPkts && may_send(now_us); sent = true) {
      note_restart(now_us);
      const bool none_out = board_.empty();
      put(board_.send_new(now_us), now_us, none_out, send);
      reduction_.on_sent();
    }
    return sent && state_ == State::kOpen && !board_.has_holes();
  }

  // Returns the same.
  template <class Send>
  [[gnu::noinline]] bool resend(Us now_us, Send&& send) {
    note_restart(now_us);
    const std::uint32_t seq = board_.retransmit(now_us);
    put(seq, now_us, false, send);
    reduction_.on_sent();
    ++retransmitted_pkts_;
    first_retransmission_us_ = std::min(first_retransmission_us_, now_us);
    return seq == board_.una();
  }

  void note_restart(Us now_us) {
    if (board_.in_flight_pkts() == 0)
      control_.on_restart(window_, {now_us, now_us - last_sent_us_, board_.next(), window_.app_limited_until_pkts > 0});
  }

  // Every transmission passes here. none_out: nothing was outstanding before it.
  template <class Send>
  void put(std::uint32_t seq, Us now_us, [[maybe_unused]] bool none_out, Send&& send) {
    if constexpr (OwnTimeout<Control>) heard_us_ = none_out ? now_us : heard_us_;
    if constexpr (ModelControl<Control>)
      rates_.on_sent(seq, now_us, none_out, board_.delivered_total_pkts(), window_.app_limited_until_pkts > 0);
    if constexpr (Tracking<Control>) control_.on_packet_sent(now_us);
    if constexpr (Paced<Control>) pacer_.on_sent(mss_bytes_, control_.pacing_bytes_per_s());
    last_sent_us_ = now_us;
    send(seq, now_us);
  }

  // One segment beyond the window, new or else the last one again: its ACK shows a lost tail. The timeout starts anew.
  template <class Send>
  void probe(Us now_us, Send&& send) {
    const bool has_new = application_.has(board_.next()) && board_.out_pkts() < kMaxOutPkts;
    if (probe_.out() || (!has_new && !board_.can_repeat_last())) {
      timer_.skip_probe(now_us, rtt_, board_);
      return;
    }
    const std::uint32_t seq = has_new ? board_.send_new(now_us) : board_.repeat_last(now_us);
    probe_.on_sent(seq, !has_new);
    if (!has_new) ++retransmitted_pkts_;
    put(seq, now_us, false, send);
    timer_.on_probe(now_us, rtt_);
  }

  std::uint32_t mss_bytes_;
  std::uint32_t target_us_;
  std::uint64_t seed_;
  Application application_;
  Window window_{kInitialWindowPkts, std::numeric_limits<std::int32_t>::max(), 0};
  Control control_;
  Scoreboard board_;
  RttEstimator rtt_;
  WindowUsage usage_;
  struct Nothing {};
  [[no_unique_address]] std::conditional_t<ModelControl<Control>, RateSampler, NoRateSampler> rates_;
  [[no_unique_address]] std::conditional_t<Paced<Control>, Pacer, Nothing> pacer_;
  CappedWindow cap_;
  Us last_sent_us_ = 0, heard_us_ = 0;  // heard: the last ACK, or the first packet after nothing was out
  Us pace_us_ = kNever;
  State state_ = State::kOpen;
  std::uint32_t recovery_end_ = 0;                               // recovery ends when all below is acknowledged
  std::uint32_t prior_cwnd_pkts_ = 0, prior_ssthresh_pkts_ = 0;  // before a loss that may be undone
  RateReduction reduction_;
  std::uint32_t timeouts_ = 0;  // since the last progress
  std::uint64_t retransmitted_pkts_ = 0;
  Us first_retransmission_us_ = kNever;
  RetransmissionTimer timer_;
  Us reorder_us_ = kNever;
  LossProbe probe_;
  bool forward_rto_ = false, new_data_first_ = false;
};

}  // namespace reinet

#endif
