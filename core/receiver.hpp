// SPDX-License-Identifier: Apache-2.0
//
// The receiving end: Linux's delayed and immediate ACKs, SACK and timestamp echo.
#ifndef REINET_RECEIVER_HPP
#define REINET_RECEIVER_HPP

#include <cstddef>
#include <cstdint>

#include "packet.hpp"
#include "ring.hpp"

namespace reinet {

// ACKs are neither lost nor reordered here, so each tells only what is new: no more is needed to keep a scoreboard.
struct Ack {
  std::uint32_t next_seq;            // all below it has arrived
  std::uint32_t sack_begin, sack_end;  // beyond that: arrived since the ACK before
  Us echo_us;                        // timestamp of the segment that opened the range being acknowledged (RFC 7323)
  Us arrives_us;                     // where it goes next: the delay, then the sender

  // Makes this and the ACK sent after it one; false, and nothing is changed, if one cannot say what both say.
  bool join(const Ack& later) {
    if (sack_begin != sack_end && later.sack_begin != later.sack_end) {
      if (later.sack_begin != sack_end) return false;
      sack_end = later.sack_end;
    } else if (later.sack_begin != later.sack_end) {
      sack_begin = later.sack_begin;
      sack_end = later.sack_end;
    }
    next_seq = later.next_seq;
    return true;
  }
};

class Receiver {
 public:
  // pkts_per_ack: mean number of packets that an ACK in order acknowledges, at least 2; where it is no whole number the
  // threshold alternates between its neighbours. A stock kernel takes 2 while the application reads at once, and more
  // where that is woken late (__tcp_ack_snd_check looks at the window that it could offer).
  explicit Receiver(double pkts_per_ack = 2.0) : pkts_per_ack_(pkts_per_ack) {}

  // Takes a packet; acknowledge(ack, joins) is called if an ACK is due at once. joins: it is one with the ACK before it
  // if that came at the same time, because then the application has not read in between: a kernel that has a window to
  // offer only after the read, or that compresses ACKs, sends one ACK for both.
  template <class Acknowledge>
  void on_packet(const Packet& p, Us now_us, Acknowledge&& acknowledge) {
    if (delivered_pkts_++ == 0 || now_us - last_packet_us_ > kLongGapUs) quick_acks_ = kQuickAcks;
    last_packet_us_ = now_us;
    const std::int32_t ahead = static_cast<std::int32_t>(p.seq - next_seq());
    if (ahead < 0 || (p.seq - next_seq() < seen_.size() && seen_[p.seq])) {
      quick_acks_ = kQuickAcks;  // a duplicate: the sender has misread something, tell it quickly
      acknowledge(ack(), false);
      return;
    }
    if (p.seq == last_ack_seq_) echo_us_ = p.sent_us;
    if (ahead > 0) {
      while (seen_.tail() <= p.seq) seen_.push(false);
      seen_[p.seq] = true;
      sack_begin_ = p.seq;
      sack_end_ = p.seq + 1;
      acknowledge(ack(), ++out_of_order_acks_ > kUncompressedAcks);
      return;
    }
    const bool fills_hole = !seen_.empty();
    accept_next();
    if (fills_hole) out_of_order_acks_ = 0;
    const bool joins = !fills_hole && quick_acks_ == 0;
    const bool ack_is_leaving = joins && now_us == last_ack_us_;
    if (!joins || ack_is_leaving || next_seq() - last_ack_seq_ >= threshold_pkts_) {
      last_ack_us_ = now_us;
      acknowledge(ack(), joins);
    } else if (timer_us_ == kNever) {
      timer_us_ = now_us + kDelayedAckUs;
    }
  }

  Us timer_us() const { return timer_us_; }
  Ack on_timer() { return ack(); }

  // Packets that came, duplicates included.
  std::uint64_t delivered_pkts() const { return delivered_pkts_; }
  std::size_t heap_bytes() const { return seen_.heap_bytes(); }

 private:
  // Values of a stock kernel; the timer is its TCP_DELACK_MIN.
  static constexpr std::uint32_t kQuickAcks = 16;
  static constexpr std::uint32_t kUncompressedAcks = 3;  // then the sender knows of the loss
  static constexpr Us kDelayedAckUs = 40'000;
  static constexpr Us kLongGapUs = 200'000;  // longer than the receiver's RTO: the sender may be in slow start again

  std::uint32_t next_seq() const { return seen_.head(); }

  void accept_next() {
    if (seen_.empty()) {
      seen_.skip();
      return;
    }
    seen_.front() = true;
    while (!seen_.empty() && seen_.front()) seen_.pop();
  }

  Ack ack() {
    const Ack ack{next_seq(), sack_begin_, sack_end_, echo_us_, 0};
    sack_begin_ = sack_end_ = 0;
    last_ack_seq_ = next_seq();
    timer_us_ = kNever;
    if (quick_acks_ > 0) --quick_acks_;
    carry_pkts_ += pkts_per_ack_;
    threshold_pkts_ = static_cast<std::uint32_t>(carry_pkts_);
    carry_pkts_ -= threshold_pkts_;
    return ack;
  }

  Ring<std::uint8_t> seen_;  // by sequence number, from the next one expected on
  std::uint32_t last_ack_seq_ = 0;
  std::uint32_t sack_begin_ = 0, sack_end_ = 0;
  double pkts_per_ack_;
  double carry_pkts_ = 0.0;  // the part of a packet that the thresholds so far left out
  std::uint32_t threshold_pkts_ = 2;
  std::uint32_t quick_acks_ = 0;
  std::uint32_t out_of_order_acks_ = 0;  // since a hole was last filled
  Us echo_us_ = 0;
  Us timer_us_ = kNever;
  Us last_packet_us_ = 0;
  Us last_ack_us_ = kNever;  // of those in order
  std::uint64_t delivered_pkts_ = 0;
};

}  // namespace reinet

#endif
