// SPDX-License-Identifier: Apache-2.0
//
// One flow: its two ends and the way there and back, all but the bottleneck in between.
//
//   sender --(wired link, if any; forward delay, losses)--> to_link | bottleneck
//     ^                                                              |
//     +--(uplink, return delay, late hosts)------- receiver <--------+
#ifndef REINET_FLOW_HPP
#define REINET_FLOW_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "core/cc/congestion_control.hpp"
#include "core/cc/random.hpp"
#include "core/cc/rtt.hpp"
#include "core/period.h"
#include "core/wire.hpp"
#include "envs/sim/options.hpp"
#include "envs/sim/path/delay_line.hpp"
#include "envs/sim/path/packet.hpp"
#include "envs/sim/path/uplink.hpp"
#include "envs/sim/path/wired.hpp"
#include "envs/sim/tcp/application.hpp"
#include "envs/sim/tcp/receiver.hpp"
#include "envs/sim/tcp/sender.hpp"

namespace reinet {

// When the application wrote an object, and when the receiver had all of it, in order.
struct ObjectTimes {
  Us written_us, received_us;
};

// What all flows of a path go through beside the bottleneck, on the heap, for the flows point to it; nullptr = the path
// has no such link.
struct SharedLinks {
  std::unique_ptr<WiredLink> wired;
  std::unique_ptr<Uplink> uplink;

  std::size_t memory_bytes() const {
    return (wired ? sizeof(WiredLink) + wired->heap_bytes() : 0) + (uplink ? sizeof(Uplink) : 0);
  }
};

template <class Control>
class Flow {
 public:
  // Makes the path's flow of that number, which shares these with the path's other flows.
  Flow(const LinkOptions& link, std::uint16_t number, const reinet_period_config& period, const SharedLinks& shared)
      : Flow(link, link.flows[number], number, period, shared) {}

  // Returns when on_event() is due: an ACK, a timer, the flow's start or end.
  Us next_us() const {
    if (phase_ == Phase::kClosed) return sender_us_;
    return std::min({to_sender_.next_us(), receiver_.timer_us(), sender_us_});
  }
  // Returns when the bottleneck gets the next packet.
  Us arrival_us() const { return to_link_.next_us(); }
  const Packet& take_arrival() { return to_link_.pop(); }

  // Returns true, and fills all but cookie and slot, when a record is due.
  bool on_event(Us now_us, reinet_flow_stats& record) {
    bool due = false;
    const std::uint32_t cap_pkts = cap_in_force_pkts(now_us);
    if (phase_ == Phase::kWaiting) {
      phase_ = Phase::kConnecting;
      connect(now_us);
    } else if (phase_ == Phase::kClosed || stop_us_ <= now_us) {
      due = close(now_us, record);
    } else if (to_sender_.next_us() <= now_us) {
      due = on_ack(to_sender_.pop(), now_us, cap_pkts, record);
      if (sender_.finished()) due = close(now_us, record);
    } else if (phase_ == Phase::kConnecting && connect_us_ <= now_us) {
      connect(now_us);
    } else if (receiver_.timer_us() <= now_us) {
      acknowledge(receiver_.on_timer(), now_us, false);
    } else if (sender_.timer_us() <= now_us) {
      const bool was_outstanding = sender_.outstanding();
      sender_.on_timer(now_us, onto_path());
      if (!was_outstanding && sender_.outstanding()) restart(now_us);
    } else {
      due = reinet_period_on_tick(&period_, now_us * 1000, sender_.outstanding(), &record);
    }
    if (phase_ != Phase::kClosed) sender_us_ = std::min({sender_.timer_us(), silence_us(), connect_us_, stop_us_});
    if (due) {
      record.target_us = target_us_;
      record.cap_pkts = cap_pkts;
    }
    return due;
  }

  // The bottleneck has carried a packet. Once closed, nobody listens to the ACKs any more.
  void on_packet(const Packet& p, Us now_us) {
    if (p.seq == kSynAck) {
      if (syn_acks_delivered_++ == 0) acknowledge({0, 0, 0, 0, p.sent_us, 0, 0}, now_us, false);
    } else {
      receiver_.on_packet(p, now_us, [&](const Ack& ack, bool joins) { acknowledge(ack, now_us, joins); });
      if (sender_.application().has_objects()) [[unlikely]]
        note_object(now_us);
    }
  }

  // Decided now, the cap is in force as soon as whoever decides is through with it.
  void set_cap(std::uint32_t pkts, Us now_us) {
    if (decision_us_ == 0)
      take_cap(pkts);
    else
      decided_.push_back({now_us + decision_us_, pkts});
  }
  bool stepped() const { return stepped_; }
  const std::vector<ObjectTimes>& objects() const { return objects_; }

  std::uint64_t sent_pkts() const { return sent_pkts_; }
  std::uint64_t lost_pkts() const { return lost_pkts_; }  // on the way to the bottleneck
  std::uint64_t on_path_pkts() const { return to_link_.size(); }
  std::uint64_t delivered_pkts() const { return receiver_.delivered_pkts() + syn_acks_delivered_; }
  // Returns how long ago the bottleneck carried what the sender now hears of, queues and clocks apart.
  Us way_back_us() const { return way_back_us_; }
  std::uint32_t wire_bytes() const { return mss_bytes_ + kHeaderBytes; }
  // What the flow has measured, unless that holds a queue: clocks and late hosts add less to the fixed delays.
  Us min_rtt_us() const { return std::min<Us>(sender_.min_rtt_us(), base_rtt_us_ + 10 * kUsPerMs); }
  std::size_t heap_bytes() const {
    return to_link_.heap_bytes() + to_sender_.heap_bytes() + receiver_.heap_bytes() + sender_.heap_bytes() +
           decided_.capacity() * sizeof(Decided) + detours_.capacity() * sizeof(Detour) +
           objects_.capacity() * sizeof(ObjectTimes);
  }

 private:
  static constexpr std::uint64_t kPeerClockMs = 1;  // 0 is no timestamp

  enum class Phase : std::uint8_t { kWaiting, kConnecting, kEstablished, kClosed };

  auto onto_path() {
    return [this](std::uint32_t seq, Us sent_us) { put_on_path(seq, wire_bytes(), sent_us); };
  }

  // Sends the SYN-ACK; it goes again after 1, 2, 4, ... s while no ACK comes.
  [[gnu::noinline]] void connect(Us now_us) {
    put_on_path(kSynAck, kSynAckWireBytes, now_us);
    connect_us_ = now_us + (kConnectUs << std::min(syn_acks_sent_++, kMostDoublings));
  }

  void put_on_path(std::uint32_t seq, std::uint32_t packet_wire_bytes, Us sent_us) {
    ++sent_pkts_;
    Packet p{seq, static_cast<std::uint16_t>(packet_wire_bytes), number_, sent_us, sent_us};
    if (!plain_) p.arrives_us = travel(p);
    if (p.arrives_us == kNever)
      ++lost_pkts_;
    else
      to_link_.push(p);
  }

  // Returns when a packet comes to the delay, where that is not all of the way to the bottleneck; kNever if it is lost.
  [[gnu::noinline]] Us travel(const Packet& p) {
    Us leaves_us = p.sent_us;
    if (wired_ && (leaves_us = wired_->carry(p)) == kNever) return kNever;
    if (loss_ > 0.0 && losses_.uniform() < loss_) return kNever;
    if (!detours_.empty()) leaves_us += detour_us(p.sent_us);
    if (forward_jitter_us_) leaves_us += jitter_.below(forward_jitter_us_);
    return last_on_path_us_ = std::max(leaves_us, last_on_path_us_);  // none overtakes another
  }

  // Returns how much longer the way is by now.
  Us detour_us(Us now_us) {
    while (detour_ < detours_.size() && detours_[detour_].from_us <= now_us) ++detour_;
    return detour_ == 0 ? 0 : detours_[detour_ - 1].longer_us;
  }

  // An ACK takes the uplink's next opportunity. Without a trace there is one every millisecond, which it shares with
  // others: the uplink's process, woken by the ACK, sleeps for a millisecond. An ACK never overtakes another.
  // joins: as one with the ACK before it if that was sent at this very time.
  void acknowledge(Ack ack, Us now_us, bool joins) {
    if (joins && acked_at_us_ == now_us && to_sender_.size() > 0) {
      to_sender_.back().join(ack);
      return;
    }
    acked_at_us_ = ack.sent_us = now_us;
    const Us leaves_us = uplink_ ? carry_up(ack, now_us) : now_us + kUsPerMs + late_us_;
    last_ack_us_ = ack.arrives_us = std::max(leaves_us + jitter_.below(jitter_us_), last_ack_us_);
    to_sender_.push(ack);
  }

  [[gnu::noinline]] Us carry_up(const Ack& ack, Us now_us) {
    return uplink_->carry(now_us, kHeaderBytes + (ack.sack_begin != ack.sack_end ? kSackBytes : 0));
  }

  // After an idle time above a quarter of its smoothed RTT the flow has no queue of its own: as in kshim/slot.h, what
  // the cap was to shorten is gone, and none acts before somebody has decided on the record that ends the period.
  std::uint32_t cap_in_force_pkts(Us now_us) {
    const std::uint32_t decided_pkts = cap_at(now_us);
    return period_.restarted || void_ ? 0 : decided_pkts;
  }

  void restart(Us now_us) {
    reinet_period_on_restart(&period_, now_us * 1000);
    if (period_.restarted) sender_.lift_cap();
  }

  bool on_ack(const Ack& ack, Us now_us, std::uint32_t cap_pkts, reinet_flow_stats& record) {
    if (phase_ == Phase::kConnecting) {
      phase_ = Phase::kEstablished;
      connect_us_ = kNever;
      sender_.start(now_us, RttEstimator::sample_us(ack.echo_us, now_us), onto_path());
      return false;
    }
    bool due = false;
    const auto observe = [&](const auto& write) {
      write(period_.last);
      period_.last.peer_ms = kPeerClockMs + ack.sent_us / kUsPerMs;
      due = reinet_period_on_last(&period_, &period_config_, &record);
    };
    sender_.on_ack(ack, now_us, cap_pkts, observe, onto_path());
    if (due && record.flags & REINET_FLAG_RESTARTED) void_ = stepped_;  // nobody decides anew on another flow's
    return due;
  }

  // The flow has finished or is stopped: its records say only that. The first flow's are repeated, each a silence
  // later, so that time goes on.
  [[gnu::noinline]] bool close(Us now_us, reinet_flow_stats& record) {
    phase_ = Phase::kClosed;
    sender_us_ = number_ == 0 ? now_us + REINET_SILENCE_NS / 1000 : kNever;
    record = {};
    record.time_ns = now_us * 1000;
    record.mss_bytes = mss_bytes_;
    record.flags = REINET_FLAG_CLOSED | REINET_FLAG_NO_SAMPLE;
    return true;
  }

  // Returns the cap in force; of those that wait for it every one has its turn, in the order of the decisions.
  std::uint32_t cap_at(Us now_us) {
    while (!decided_.empty() && decided_.front().from_us <= now_us) [[unlikely]] {
      take_cap(decided_.front().pkts);
      decided_.erase(decided_.begin());
    }
    return cap_pkts_;
  }

  void take_cap(std::uint32_t pkts) {
    cap_pkts_ = pkts;
    void_ = false;
  }

  // The receiver has all that was written, and not before: an object is complete.
  [[gnu::noinline]] void note_object(Us now_us) {
    const Application& application = sender_.application();
    if (receiver_.next_seq() != application.written_pkts()) return;
    if (objects_.empty() || objects_.back().written_us != application.written_us())
      objects_.push_back({application.written_us(), now_us});
  }

  Us silence_us() const {
    return period_.start_ns && sender_.outstanding() ? (period_.last_sign_ns + REINET_SILENCE_NS) / 1000 : kNever;
  }

  Flow(const LinkOptions& link, const FlowOptions& own, std::uint16_t number, const reinet_period_config& period,
       const SharedLinks& shared)
      : stop_us_(own.stop_ms ? start_us(link) + us_from_ms(*own.stop_ms) : kNever),
        base_rtt_us_(forward_us(own) + return_us(own)),
        way_back_us_(return_us(own)),
        mss_bytes_(mss_bytes_of(link)),
        target_us_(own.target_us),
        late_us_(link.late_us),
        jitter_us_(link.jitter_us),
        forward_jitter_us_(link.forward_jitter_us),
        decision_us_(us_from_ms(link.decision_ms)),
        number_(number),
        stepped_(own.stepped),
        loss_(link.loss),
        period_config_(period),
        jitter_(seed_of_flow(link, number)),
        losses_(~seed_of_flow(link, number)),
        cap_pkts_(own.cap_pkts),
        wired_(shared.wired.get()),
        uplink_(shared.uplink.get()),
        plain_(!shared.wired && link.loss == 0.0 && link.forward_jitter_us == 0 && link.detour_ms.empty()),
        sender_us_(start_us(link) + us_from_ms(own.start_ms)),
        sender_(mss_bytes_, Application(writes_of(own), mss_bytes_), own.target_us, seed_of_flow(link, number)),
        receiver_(link.pkts_per_ack, kUsPerMs + return_us(own), Control::kAckedSingly),
        to_link_(forward_us(own), link.late_us),
        to_sender_(return_us(own), link.late_us) {
    for (const auto& [from_ms, longer_ms] : link.detour_ms)
      detours_.push_back({start_us(link) + us_from_ms(from_ms), us_from_ms(longer_ms)});
  }

  static std::uint32_t mss_bytes_of(const LinkOptions& link) {
    constexpr std::uint32_t kMostWireBytes = std::min(Control::kMostIpBytes, kMostIpBytes) + kTunHeaderBytes;
    return std::min(link.mss_bytes, kMostWireBytes - kHeaderBytes);
  }

  static Writes writes_of(const FlowOptions& own) {
    return {own.flow_bytes, bytes_per_s_from_mbps(own.app_mbps), own.object_bytes, us_from_ms(own.pause_ms)};
  }

  static constexpr std::uint32_t kMostIpBytes = 65'535;  // of IPv4
  static constexpr Us kConnectUs = 1'000'000;            // RFC 6298's first timeout
  static constexpr std::uint32_t kMostDoublings = 6;     // up to a minute

  struct Detour {
    Us from_us, longer_us;
  };

  struct Decided {
    Us from_us;
    std::uint32_t pkts;
  };

  // The flow starts with the sender's half of the handshake, which gives it its first RTT.
  static constexpr std::uint32_t kSynAckWireBytes = 20 + 40 + kTunHeaderBytes;
  static constexpr std::uint32_t kSynAck = std::numeric_limits<std::uint32_t>::max();

  Us stop_us_;      // kNever = goes on for ever
  Us base_rtt_us_;  // its fixed delays, there and back
  Us way_back_us_;  // of these, the one back
  std::uint32_t mss_bytes_;
  std::uint32_t target_us_;
  std::uint32_t late_us_;            // how late every process on the path wakes,
  std::uint32_t jitter_us_;          // ACKs come up to so much later,
  std::uint32_t forward_jitter_us_;  // and so do data packets
  Us decision_us_;                   // from a record to its cap
  std::uint16_t number_;
  bool stepped_;  // its records are returned
  double loss_;   // of data packets, each by itself
  Phase phase_ = Phase::kWaiting;
  std::uint32_t syn_acks_sent_ = 0, syn_acks_delivered_ = 0;
  reinet_period_config period_config_;
  reinet_period period_{};
  std::vector<Detour> detours_;  // in the order of their times,
  std::size_t detour_ = 0;       // of which so many have begun
  SplitMix64 jitter_;
  SplitMix64 losses_;
  std::uint32_t cap_pkts_;        // in force when it was last asked for
  bool void_ = false;             // it answers what was before an idle time
  std::vector<Decided> decided_;  // not yet in force, hardly ever more than one
  WiredLink* wired_;
  Uplink* uplink_;
  bool plain_;  // the way to the bottleneck is a fixed delay
  Us connect_us_ = kNever;
  Us sender_us_;  // the next event of the sender's side that is no ACK; packets that arrive do not change it
  Sender<Control> sender_;
  Receiver receiver_;
  DelayLine<Packet> to_link_;
  DelayLine<Ack> to_sender_;
  Us last_on_path_us_ = 0;   // when packets and ACKs last
  Us last_ack_us_ = 0;       // came to their delays
  Us acked_at_us_ = kNever;  // when the receiver last sent an ACK
  std::uint64_t sent_pkts_ = 0;
  std::uint64_t lost_pkts_ = 0;
  std::vector<ObjectTimes> objects_;  // that have arrived as a whole
};

}  // namespace reinet

#endif
