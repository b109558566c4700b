// SPDX-License-Identifier: Apache-2.0
//
// A bottleneck with the semantics of mm-link: a trace of delivery opportunities, a queue and a log. Like mm-link it is
// a process that sleeps whole milliseconds, counted from when it last woke, and is also woken by every packet: so it
// serves an opportunity up to a millisecond after its time, at the phase within a millisecond of its last wake.
#ifndef REINET_LINK_HPP
#define REINET_LINK_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/wire.hpp"
#include "envs/sim/path/link_log.hpp"
#include "envs/sim/path/packet.hpp"
#include "envs/sim/path/queue.hpp"
#include "envs/sim/path/schedule.hpp"

namespace reinet {

class Link {
 public:
  // late_us: how late every sleep ends; 0 = no process sleeps here, opportunities are used at their time.
  // log: nullptr = keep none. The trace and the log outlive this.
  Link(std::span<const std::uint32_t> trace_ms, const QueueConfig& queue, Us now_us, Us late_us, LinkLog* log)
      : late_us_(late_us), log_(log), schedule_(trace_ms), queue_(queue, now_us / kUsPerMs) {
    schedule_.seek_after(now_us / kUsPerMs);
  }

  // Takes a packet at p.arrives_us. Opportunities up to and including that millisecond are past it, as in mm-link.
  void arrive(const Packet& p) {
    const std::uint64_t now_ms = p.arrives_us / kUsPerMs;
    if (log_) log_->arrived(p, now_ms);
    queue_.push(p, now_ms, [&](const Packet& dropped) { count_drop(dropped, now_ms); });
    if (idle()) return;
    if (due_us_ == kNever) {
      schedule_.skip_until(now_ms);  // lost opportunities
      due_us_ = schedule_.next_ms() * kUsPerMs;
    }
    next_us_ = wake_us(p.arrives_us, p.arrives_us - now_ms * kUsPerMs);
  }

  // The time of the next opportunity that something waits for, and when it will be used unless a packet comes before.
  Us due_us() const { return due_us_; }
  Us next_us() const { return next_us_; }

  // Uses that opportunity; deliver(packet) is called for each packet whose last byte it carries.
  template <class Deliver>
  void transmit(Us now_us, Deliver&& deliver) {
    const std::uint64_t now_ms = schedule_.next_ms();
    schedule_.advance();
    std::uint32_t left_bytes = kOpportunityBytes;
    if (in_transit_left_bytes_ > 0) {
      const std::uint32_t carried_bytes = std::min(left_bytes, in_transit_left_bytes_);
      left_bytes -= carried_bytes;
      in_transit_left_bytes_ -= carried_bytes;
      if (in_transit_left_bytes_ == 0) depart(in_transit_, now_ms, deliver);
    }
    while (left_bytes > 0 && !queue_.empty()) {
      const Packet& p = queue_.pop(now_ms, [&](const Packet& dropped) { count_drop(dropped, now_ms); });
      if (p.wire_bytes > left_bytes) {  // goes on at the next opportunity
        in_transit_ = p;
        in_transit_left_bytes_ = p.wire_bytes - left_bytes;
        break;
      }
      left_bytes -= p.wire_bytes;
      depart(p, now_ms, deliver);
    }
    sleep(now_us);
  }

  // Leaves the opportunities up to and including that time to others.
  void pass_over(Us now_us) {
    schedule_.skip_until(now_us / kUsPerMs);
    sleep(now_us);
  }

  // Returns the trace as that flow sees it: here all see the same.
  const Schedule& schedule(std::uint32_t /*flow*/) const { return schedule_; }
  // Counts the packets that wait or are half sent.
  std::uint32_t queued_pkts() const { return queue_.pkts() + (in_transit_left_bytes_ > 0 ? 1 : 0); }
  std::uint64_t dropped_pkts() const { return dropped_pkts_; }
  std::size_t heap_bytes() const { return queue_.heap_bytes(); }

 private:
  bool idle() const { return queue_.empty() && in_transit_left_bytes_ == 0; }
  void sleep(Us now_us) {
    if (idle()) {
      due_us_ = next_us_ = kNever;
      return;
    }
    due_us_ = schedule_.next_ms() * kUsPerMs;
    next_us_ = wake_us(now_us, now_us % kUsPerMs);
  }
  // Returns when the process that goes to sleep now, at that phase within the millisecond, will use the next
  // opportunity: at once where its millisecond has begun.
  Us wake_us(Us now_us, Us phase_us) const {
    if (due_us_ <= now_us) return now_us;
    return late_us_ == 0 ? due_us_ : due_us_ + phase_us + late_us_;
  }
  template <class Deliver>
  void depart(const Packet& p, std::uint64_t now_ms, Deliver&& deliver) {
    if (log_) log_->departed(p, now_ms);
    deliver(p);
  }
  void count_drop(const Packet& p, std::uint64_t now_ms) {
    ++dropped_pkts_;
    if (log_) log_->dropped(p, now_ms);
  }

  // What every packet needs comes first.
  Us due_us_ = kNever;
  Us next_us_ = kNever;
  Us late_us_;
  LinkLog* log_;
  std::uint32_t in_transit_left_bytes_ = 0;
  Schedule schedule_;
  Queue queue_;
  Packet in_transit_{};
  std::uint64_t dropped_pkts_ = 0;
};

}  // namespace reinet

#endif
