// SPDX-License-Identifier: Apache-2.0
//
// One flow through one link, event by event:
//
//   sender --(mrtt/2)--> queue, trace --> receiver --(next ms of the uplink, mrtt/2)--> sender
//
// The same path as mm-delay around mm-link with an uncongested uplink.
#ifndef REINET_SIM_HPP
#define REINET_SIM_HPP

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "application.hpp"
#include "link.hpp"
#include "period.h"
#include "random.hpp"
#include "receiver.hpp"
#include "ring.hpp"
#include "sender.hpp"

namespace reinet {

struct LinkConfig {
  std::span<const std::uint32_t> trace_ms;
  std::uint32_t buffer_bytes;
  Us mrtt_us;
  std::uint32_t target_us;
  std::uint64_t start_offset_ms;
  std::uint32_t mss_bytes;
  std::uint32_t jitter_us;
  std::uint64_t seed;
  std::uint64_t flow_bytes;      // 0 = for ever
  double app_bytes_per_s;        // 0 = as fast as it goes
};

// Where every packet ever sent is. sent = dropped + on_path + queued + delivered.
struct PacketCounts {
  std::uint64_t sent, dropped, on_path, queued, delivered;
};

class Simulation {
 public:
  virtual ~Simulation() = default;
  // Runs under that cap, 0 = none, to the flow's next record.
  virtual void run_to_record(std::uint32_t cap_pkts, reinet_flow_stats& record) = 0;
  virtual PacketCounts packets() const = 0;
  virtual std::uint64_t now_ms() const = 0;
  virtual std::uint64_t start_ms() const = 0;
  // Opportunities in the next minimum RTT and horizon, plus one packet: the clairvoyant's cap.
  virtual std::uint32_t clairvoyant_cap_pkts(std::uint64_t horizon_ms) const = 0;
};

template <CongestionControl Control>
class FlowSimulation final : public Simulation {
 public:
  // log: nullptr = keep none. Config's trace and log outlive this.
  FlowSimulation(const LinkConfig& config, const reinet_period_config& period, LinkLog* log)
      : config_(config),
        period_config_(period),
        random_(config.seed),
        start_us_(config.start_offset_ms * kUsPerMs),
        now_us_(start_us_),
        sender_(config.mss_bytes, Application(config.flow_bytes, config.app_bytes_per_s, config.mss_bytes), config.seed) {
    link_.reset(config.trace_ms, config.buffer_bytes, now_us_, log);
    put_on_path(kSynAck, kSynAckWireBytes, now_us_);
  }

  void run_to_record(std::uint32_t cap_pkts, reinet_flow_stats& record) override {
    const bool was_finished = sender_.finished();
    while (!sender_.finished() && !advance(cap_pkts, record)) {
    }
    if (sender_.finished()) close(record, was_finished);
    record.target_us = config_.target_us;
    record.cap_pkts = cap_pkts;
  }

  PacketCounts packets() const override {
    return {sent_pkts_, link_.dropped_pkts(), to_link_.size(), link_.queued_pkts(),
            receiver_.delivered_pkts() + (syn_ack_delivered_ ? 1 : 0)};
  }
  std::uint64_t now_ms() const override { return now_us_ / kUsPerMs; }
  std::uint64_t start_ms() const override { return start_us_ / kUsPerMs; }

  std::uint32_t clairvoyant_cap_pkts(std::uint64_t horizon_ms) const override {
    const Us min_rtt_us = std::min<Us>(sender_.min_rtt_us(), config_.mrtt_us + 10 * kUsPerMs);
    const std::uint64_t until_ms = (now_us_ + min_rtt_us) / kUsPerMs + horizon_ms;
    const Schedule& trace = link_.schedule();
    const std::uint64_t coming = trace.count_until(until_ms) - trace.count_until(now_ms());
    return static_cast<std::uint32_t>(coming * kOpportunityBytes / wire_bytes()) + 1;
  }

 private:
  std::uint32_t wire_bytes() const { return config_.mss_bytes + kHeaderBytes; }

  auto onto_path() {
    return [this](std::uint32_t seq, Us sent_us) { put_on_path(seq, wire_bytes(), sent_us); };
  }

  void put_on_path(std::uint32_t seq, std::uint32_t packet_wire_bytes, Us sent_us) {
    ++sent_pkts_;
    to_link_.push({seq, packet_wire_bytes, sent_us, sent_us + config_.mrtt_us / 2});
  }

  // Handles the next event. Returns true, and fills record, when it makes one due.
  bool advance(std::uint32_t cap_pkts, reinet_flow_stats& record) {
    const Us opportunity_us = link_.next_us();
    const Us arrival_us = to_link_.empty() ? kNever : to_link_.front().arrives_us;
    const Us ack_us = to_sender_.empty() ? kNever : to_sender_.front().arrives_us;
    const Us timer_us = std::min({sender_.timer_us(), receiver_.timer_us(), silence_us()});
    now_us_ = std::max(now_us_, std::min({opportunity_us, arrival_us, ack_us, timer_us}));
    // At equal times an opportunity comes first: mm-link uses up those that are due before it takes a packet in.
    if (opportunity_us <= now_us_) {
      link_.transmit([this](const Packet& p) { deliver(p); });
    } else if (arrival_us <= now_us_) {
      link_.arrive(to_link_.pop());
    } else if (ack_us <= now_us_) {
      return take_ack(to_sender_.pop(), cap_pkts, record);
    } else if (receiver_.timer_us() <= now_us_) {
      acknowledge(receiver_.on_timer());
    } else if (sender_.timer_us() <= now_us_) {
      const bool was_outstanding = sender_.outstanding();
      sender_.on_timer(now_us_, onto_path());
      if (!was_outstanding && sender_.outstanding()) reinet_period_on_restart(&period_, now_us_ * 1000);
    } else {
      record = {};
      return reinet_period_on_tick(&period_, now_us_ * 1000, sender_.outstanding(), &record);
    }
    return false;
  }

  // A finished flow's records say only that it is closed; each further one comes a silence later, so that time goes on.
  void close(reinet_flow_stats& record, bool was_finished) {
    if (was_finished) now_us_ += REINET_SILENCE_NS / 1000;
    record = {};
    record.time_ns = now_us_ * 1000;
    record.mss_bytes = config_.mss_bytes;
    record.flags = REINET_FLAG_CLOSED | REINET_FLAG_NO_SAMPLE;
  }

  Us silence_us() const {
    return period_.start_ns && sender_.outstanding() ? (period_.last_sign_ns + REINET_SILENCE_NS) / 1000 : kNever;
  }

  void deliver(const Packet& p) {
    if (p.seq == kSynAck) {
      syn_ack_delivered_ = true;
      acknowledge({0, 0, 0, p.sent_us, 0});
    } else if (const auto ack = receiver_.on_packet(p, now_us_)) {
      acknowledge(*ack);
    }
  }

  // An ACK takes the uplink's next opportunity, which comes every millisecond, and shares it with others. The hosts on
  // its way wake up a little late; it never overtakes another.
  void acknowledge(Ack ack) {
    const Us late_us = config_.jitter_us ? random_.next() % config_.jitter_us : 0;
    const Us arrives_us = (now_us_ / kUsPerMs + 1) * kUsPerMs + config_.mrtt_us / 2 + late_us;
    last_ack_arrives_us_ = ack.arrives_us = std::max(arrives_us, last_ack_arrives_us_);
    to_sender_.push(ack);
  }

  bool take_ack(const Ack& ack, std::uint32_t cap_pkts, reinet_flow_stats& record) {
    if (!established_) {
      established_ = true;
      sender_.start(now_us_, static_cast<std::uint32_t>(now_us_ - ack.echo_us), onto_path());
      return false;
    }
    bool due = false;
    const auto observe = [&](const reinet_ack& a) {
      reinet_flow_stats filled{};
      due = reinet_period_on_ack(&period_, &period_config_, &a, &filled);
      if (due) record = filled;
    };
    sender_.on_ack(ack, now_us_, cap_pkts, observe, onto_path());
    return due;
  }

  static constexpr std::uint32_t kHeaderBytes = 20 + 32 + 4;  // IP, TCP with timestamps, TUN
  // The flow starts with the sender's half of the handshake, which gives it its first RTT.
  static constexpr std::uint32_t kSynAckWireBytes = 20 + 40 + 4;
  static constexpr std::uint32_t kSynAck = std::numeric_limits<std::uint32_t>::max();

  LinkConfig config_;
  reinet_period_config period_config_;
  SplitMix64 random_;
  Us start_us_;
  Us now_us_;
  Sender<Control> sender_;
  Ring<Packet> to_link_;
  Link link_;
  Receiver receiver_;
  Ring<Ack> to_sender_;
  Us last_ack_arrives_us_ = 0;
  reinet_period period_{};
  std::uint64_t sent_pkts_ = 0;
  bool syn_ack_delivered_ = false;
  bool established_ = false;
};

}  // namespace reinet

#endif
