// SPDX-License-Identifier: Apache-2.0
//
// The receiving end: Linux's delayed and immediate ACKs, SACK and timestamp echo; or, for flows of such controls
// (ControlDefaults::kAckedSingly), one ACK for each packet.
#ifndef REINET_RECEIVER_HPP
#define REINET_RECEIVER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "envs/sim/path/packet.hpp"
#include "envs/sim/path/ring.hpp"
#include "envs/sim/tcp/receive_window.hpp"

namespace reinet {

// ACKs are neither lost nor reordered here, so each tells only what is new: no more is needed to keep a scoreboard.
struct Ack {
  std::uint32_t next_seq;              // all below it has arrived
  std::uint32_t sack_begin, sack_end;  // beyond that: arrived since the ACK before
  std::uint32_t duplicate_end;         // D-SACK: the one below this arrived a second time; 0 = none did
  Us echo_us;                          // timestamp of the segment that opened the range being acknowledged (RFC 7323)
  Us sent_us;                          // the timestamp of its own
  Us arrives_us;                       // where it goes next: the delay, then the sender

  // Makes this and an ACK in order sent after it one.
  void join(const Ack& later) { next_seq = later.next_seq; }
};

class Receiver {
 public:
  // pkts_per_ack: mean number of packets that an ACK in order acknowledges, at least 2; where it is no whole number the
  // threshold alternates between its neighbours. A stock kernel takes 2 while the application reads at once, and more
  // where that is woken late (__tcp_ack_snd_check looks at the window that it could offer).
  // back_us: what an ACK takes to the sender. singly: every packet has an ACK of its own at once, whatever
  // pkts_per_ack.
  Receiver(double pkts_per_ack, Us back_us, bool singly)
      : pkts_per_ack_(pkts_per_ack), singly_(singly), window_(back_us) {}

  // Takes a packet; acknowledge(ack, joins) is called for each ACK that is due at once. joins: it is one with the ACK
  // before it if that came at the same time, because then the application has not read in between, and a kernel that
  // has a window to offer only after the read sends one ACK for both.
  template <class Acknowledge>
  void on_packet(const Packet& p, Us now_us, Acknowledge&& acknowledge) {
    if (delivered_pkts_++ == 0 || now_us - last_packet_us_ > kLongGapUs) quick_acks_ = kQuickAcks;
    last_packet_us_ = now_us;
    const std::int32_t ahead = static_cast<std::int32_t>(p.seq - next_seq());
    if (ahead < 0 || (p.seq - next_seq() < seen_.size() && seen_[p.seq])) {
      quick_acks_ = kQuickAcks;  // a duplicate: the sender has misread something, tell it quickly
      acknowledge(ack(p.seq + 1), false);
      return;
    }
    if (p.seq == last_ack_seq_) echo_us_ = p.sent_us;
    if (ahead > 0) {
      while (seen_.tail() <= p.seq) seen_.push(false);
      seen_[p.seq] = true;
      take_out_of_order(p.seq, now_us, acknowledge);
      return;
    }
    const bool fills_hole = !seen_.empty();
    accept_next();
    if (fills_hole) out_of_order_pkts_ = 0;
    if (window_.take(next_seq(), p.sent_us, now_us)) quick_acks_ = std::max(quick_acks_, 1U);
    const bool joins = !fills_hole && quick_acks_ == 0 && !singly_;
    const bool ack_is_leaving = joins && now_us == last_ack_us_;
    if (!joins || ack_is_leaving || next_seq() - last_ack_seq_ >= threshold_pkts_) {
      last_ack_us_ = now_us;
      acknowledge(ack(), joins);
    } else if (timer_us_ == kNever) {
      timer_us_ = now_us + kDelayedAckUs;
    }
  }

  // Returns when the timer of a delayed ACK, or of compressed ones, is due.
  Us timer_us() const { return timer_us_; }
  Ack on_timer() { return ack(); }

  // Returns the first segment that has not arrived.
  std::uint32_t next_seq() const { return seen_.head(); }
  // Counts the packets that came, duplicates included.
  std::uint64_t delivered_pkts() const { return delivered_pkts_; }
  std::size_t heap_bytes() const { return seen_.heap_bytes(); }

 private:
  // Values of a stock kernel; the timer is its TCP_DELACK_MIN.
  static constexpr std::uint32_t kQuickAcks = 16;
  static constexpr std::uint32_t kUncompressedAcks = 3;  // then the sender knows of the loss
  static constexpr Us kCompressUs = 1000;
  static constexpr Us kDelayedAckUs = 40'000;
  static constexpr Us kLongGapUs = 200'000;  // longer than the receiver's RTO: the sender may be in slow start again

  // The first few at once; what comes within a millisecond after them is told by one ACK, of one range.
  template <class Acknowledge>
  void take_out_of_order(std::uint32_t seq, Us now_us, Acknowledge&& acknowledge) {
    if (sack_begin_ != sack_end_ && sack_end_ != seq) acknowledge(ack(), false);
    if (sack_begin_ == sack_end_) sack_begin_ = seq;
    sack_end_ = seq + 1;
    if (++out_of_order_pkts_ <= kUncompressedAcks || singly_)
      acknowledge(ack(), false);
    else
      timer_us_ = std::min(timer_us_, now_us + kCompressUs);
  }

  void accept_next() {
    if (seen_.empty()) {
      seen_.skip();
      return;
    }
    seen_.front() = true;
    while (!seen_.empty() && seen_.front()) seen_.pop();
  }

  Ack ack(std::uint32_t duplicate_end = 0) {
    const Ack ack{next_seq(), sack_begin_, sack_end_, duplicate_end, echo_us_, 0, 0};
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
  bool singly_;
  double carry_pkts_ = 0.0;  // the part of a packet that the thresholds so far left out
  std::uint32_t threshold_pkts_ = 2;
  std::uint32_t quick_acks_ = 0;
  std::uint32_t out_of_order_pkts_ = 0;  // since a hole was last filled
  Us echo_us_ = 0;
  Us timer_us_ = kNever;
  Us last_packet_us_ = 0;
  Us last_ack_us_ = kNever;  // of those in order
  std::uint64_t delivered_pkts_ = 0;
  ReceiveWindow window_;
};

}  // namespace reinet

#endif
