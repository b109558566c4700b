// SPDX-License-Identifier: Apache-2.0
//
// What the sender knows of each outstanding segment, and RACK (RFC 8985): which of them are lost.
#ifndef REINET_SCOREBOARD_HPP
#define REINET_SCOREBOARD_HPP

#include <algorithm>
#include <cstdint>

#include "core/cc/clock.hpp"
#include "envs/sim/path/ring.hpp"

namespace reinet {

struct Segment {            // in one word, for there is one per packet in flight
  Us sent_us : 60;          // latest transmission
  bool sacked : 1;          // selectively acknowledged
  bool lost : 1;            // deemed lost and not acknowledged since
  bool retransmitting : 1;  // a retransmission is on its way
  bool retransmitted : 1;   // was ever retransmitted
};

// What one ACK delivered.
struct Delivery {
  std::uint32_t pkts = 0;        // for the first time, cumulatively or selectively
  std::uint32_t acked_pkts = 0;  // cumulatively, some of them selectively before
  bool sacked_new = false;
  bool original_below_limit = false;  // a never-retransmitted segment below the limit asked about
  // Of never-retransmitted segments, the first and the latest that it acknowledges, cumulatively and selectively.
  Us first_acked_sent_us = kNever, acked_sent_us = kNever;
  Us first_sacked_sent_us = kNever, sacked_sent_us = kNever;

  bool una_advanced() const { return acked_pkts > 0; }
  Us first_sent_us() const { return first_acked_sent_us != kNever ? first_acked_sent_us : first_sacked_sent_us; }
  Us latest_sent_us() const { return sacked_sent_us != kNever ? sacked_sent_us : acked_sent_us; }
};

class Scoreboard {
 public:
  std::uint32_t una() const { return segments_.head(); }
  std::uint32_t next() const { return segments_.tail(); }
  bool empty() const { return segments_.empty(); }
  std::uint32_t out_pkts() const { return segments_.size(); }
  std::uint32_t sacked_pkts() const { return sacked_pkts_; }
  std::uint32_t in_flight_pkts() const { return out_pkts() - sacked_pkts_ - lost_pkts_ + retransmitting_pkts_; }
  bool has_holes() const { return sacked_pkts_ + lost_pkts_ > 0; }
  bool has_lost() const { return lost_pkts_ > 0; }
  bool is_retransmitting() const { return retransmitting_pkts_ > 0; }
  Us head_sent_us() const { return segments_.front().sent_us; }
  Us newest_delivered_sent_us() const { return newest_.sent_us; }
  std::uint64_t delivered_total_pkts() const { return una() + sacked_pkts_; }
  std::uint64_t lost_total_pkts() const { return lost_total_pkts_; }
  std::size_t heap_bytes() const { return segments_.heap_bytes(); }

  std::uint32_t send_new(Us now_us) {
    segments_.push({now_us, false, false, false, false});
    return next() - 1;
  }

  bool has_retransmission() const { return pending_pkts_ > 0; }
  std::uint32_t retransmit(Us now_us) {
    std::uint32_t seq = std::max(first_pending_, una());
    while (!segments_[seq].lost || segments_[seq].retransmitting) ++seq;
    first_pending_ = seq + 1;
    Segment& s = segments_[seq];
    s.sent_us = now_us;
    s.retransmitting = s.retransmitted = true;
    --pending_pkts_;
    ++retransmitting_pkts_;
    return seq;
  }

  // The last segment once more, not because it is lost.
  bool can_repeat_last() const { return !empty() && !segments_[next() - 1].sacked && !segments_[next() - 1].lost; }
  std::uint32_t repeat_last(Us now_us) {
    const std::uint32_t seq = next() - 1;
    Segment& s = segments_[seq];
    s.sent_us = now_us;
    if (!s.retransmitting) ++retransmitting_pkts_;
    s.retransmitting = s.retransmitted = true;
    return seq;
  }

  // Takes what an ACK says: all below next_seq has arrived, and [sack_begin, sack_end). limit: see Delivery.
  // delivered(seq, sent_us) is called for each segment that arrived for the first time.
  template <class Delivered>
  Delivery deliver(std::uint32_t next_seq, std::uint32_t sack_begin, std::uint32_t sack_end, std::uint32_t limit,
                   Us now_us, Us min_rtt_us, Delivered&& delivered) {
    Delivery d;
    for (std::uint32_t seq = std::max(sack_begin, una()); seq < sack_end; ++seq) {
      Segment& s = segments_[seq];
      if (s.sacked) continue;
      if (!s.retransmitted) note_sent(s, d.first_sacked_sent_us, d.sacked_sent_us);
      delivered(seq, s.sent_us);
      note(d, seq, s, limit, now_us, min_rtt_us);
      d.sacked_new = s.sacked = true;
      ++sacked_pkts_;
    }
    for (; una() < next_seq; segments_.pop()) {
      Segment& s = segments_.front();
      ++d.acked_pkts;
      if (s.sacked) {
        --sacked_pkts_;
        continue;
      }
      if (!s.retransmitted) note_sent(s, d.first_acked_sent_us, d.acked_sent_us);
      delivered(una(), s.sent_us);
      note(d, una(), s, limit, now_us, min_rtt_us);
    }
    return d;
  }

  // RACK: what was sent before the newest delivered segment is lost once it is overdue by that segment's RTT and
  // reordering_us. Returns when the timer for the others is due, kNever if there are none: when the last of them is
  // overdue, and two of the kernel's ticks (tcp_rack_mark_lost). lost(sent_us) is called for each; so below.
  template <class Lost>
  Us detect_losses(Us now_us, Us reordering_us, Lost&& lost) {
    Us last_us = 0;
    for (std::uint32_t seq = una(); seq != next(); ++seq) {
      Segment& s = segments_[seq];
      if (!in_flight(s) || !newest_.sent_after(s.sent_us, seq)) continue;
      const Us overdue_us = s.sent_us + newest_.rtt_us + reordering_us;
      if (overdue_us > now_us) {
        last_us = std::max(last_us, overdue_us);
        continue;
      }
      lost(s.sent_us);
      mark_lost(seq, s);
    }
    return last_us > 0 ? last_us + kLeastTimerUs : kNever;
  }

  // A timeout: the first segment is lost, and all that have been out for an RTT.
  template <class Lost>
  void mark_timed_out(Us now_us, Lost&& lost) {
    for (std::uint32_t seq = una(); seq != next(); ++seq) {
      Segment& s = segments_[seq];
      if (!in_flight(s) || (seq != una() && s.sent_us + newest_.rtt_us > now_us)) continue;
      lost(s.sent_us);
      mark_lost(seq, s);
    }
  }

  // Takes back what was deemed lost and was not.
  void unmark_lost() {
    for (std::uint32_t seq = una(); seq != next(); ++seq) segments_[seq].lost = false;
    lost_pkts_ = pending_pkts_ = 0;
  }

 private:
  // The most recently sent segment delivered so far.
  struct Newest {
    Us sent_us = 0;
    std::uint32_t seq = 0;
    Us rtt_us = 0;

    bool sent_after(Us other_sent_us, std::uint32_t other_seq) const {
      return sent_us > other_sent_us || (sent_us == other_sent_us && seq > other_seq);
    }
  };

  static constexpr Us kLeastTimerUs = 2'000;  // the kernel's TCP_TIMEOUT_MIN_US

  static bool in_flight(const Segment& s) { return !s.sacked && (!s.lost || s.retransmitting); }

  // A segment is delivered for the first time.
  static void note_sent(const Segment& s, Us& first_us, Us& latest_us) {
    latest_us = s.sent_us;
    if (first_us == kNever) first_us = s.sent_us;
  }

  void note(Delivery& d, std::uint32_t seq, Segment& s, std::uint32_t limit, Us now_us, Us min_rtt_us) {
    ++d.pkts;
    d.original_below_limit |= !s.retransmitted && seq < limit;
    const Us rtt_us = now_us - s.sent_us;
    // A retransmission acknowledged sooner than a round trip: it was the original that arrived.
    if (!s.retransmitted || rtt_us >= min_rtt_us) {
      newest_.rtt_us = rtt_us;
      if (!newest_.sent_after(s.sent_us, seq)) {
        newest_.sent_us = s.sent_us;
        newest_.seq = seq;
      }
    }
    if (s.lost || s.retransmitting) [[unlikely]]
      settle(s);
  }

  void settle(Segment& s) {
    if (s.lost) --lost_pkts_;
    if (s.lost && !s.retransmitting) --pending_pkts_;
    if (s.retransmitting) --retransmitting_pkts_;
    s.lost = s.retransmitting = false;
  }

  void mark_lost(std::uint32_t seq, Segment& s) {
    if (s.retransmitting) --retransmitting_pkts_;
    if (!s.lost) ++lost_pkts_;
    s.retransmitting = false;
    s.lost = true;
    ++pending_pkts_;
    ++lost_total_pkts_;
    first_pending_ = std::min(first_pending_, seq);
  }

  Ring<Segment> segments_;
  Newest newest_;
  std::uint32_t sacked_pkts_ = 0;
  std::uint32_t lost_pkts_ = 0;
  std::uint32_t retransmitting_pkts_ = 0;
  std::uint32_t pending_pkts_ = 0;   // lost and not retransmitted since
  std::uint32_t first_pending_ = 0;  // none lies below
  std::uint64_t lost_total_pkts_ = 0;
};

}  // namespace reinet

#endif
