// SPDX-License-Identifier: Apache-2.0
//
// A bottleneck with the semantics of mm-link: a trace of delivery opportunities, a droptail queue and a log.
#ifndef REINET_LINK_HPP
#define REINET_LINK_HPP

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "ring.hpp"

namespace reinet {

using Us = std::uint64_t;  // microseconds of trace time: 0 is the trace's first start
constexpr Us kUsPerMs = 1000;
constexpr Us kNever = std::numeric_limits<Us>::max();

// An opportunity carries one MTU of 1500 bytes and the 4 bytes that a TUN device puts before each packet.
constexpr std::uint32_t kOpportunityBytes = 1504;

// The delivery opportunities of a trace that starts again at its last value, for ever.
class Schedule {
 public:
  Schedule() = default;
  // ms: non-decreasing, the last one above 0, alive as long as this.
  explicit Schedule(std::span<const std::uint32_t> ms) : ms_(ms) {}

  // Go to the first opportunity after that time.
  void seek_after(std::uint64_t now_ms) {
    const std::uint64_t within = now_ms % loop_ms();
    loop_start_ms_ = now_ms - within;
    next_ = static_cast<std::size_t>(std::upper_bound(ms_.begin(), ms_.end(), within) - ms_.begin());
  }
  std::uint64_t next_ms() const { return loop_start_ms_ + ms_[next_]; }
  void advance() {
    if (++next_ == ms_.size()) {
      next_ = 0;
      loop_start_ms_ += loop_ms();
    }
  }
  void skip_until(std::uint64_t now_ms) {
    while (next_ms() <= now_ms) advance();
  }

  // Number of opportunities at times in [0, now_ms], from the first start of the trace.
  std::uint64_t count_until(std::uint64_t now_ms) const {
    const auto in_loop = std::upper_bound(ms_.begin(), ms_.end(), now_ms % loop_ms()) - ms_.begin();
    return now_ms / loop_ms() * ms_.size() + static_cast<std::uint64_t>(in_loop);
  }

 private:
  std::uint64_t loop_ms() const { return ms_.back(); }

  std::span<const std::uint32_t> ms_;
  std::size_t next_ = 0;
  std::uint64_t loop_start_ms_ = 0;
};

// A data packet on its way from the sender to the receiver.
struct Packet {
  std::uint32_t seq;         // in segments
  std::uint32_t wire_bytes;  // IP packet + TUN header
  Us sent_us;                // the TCP timestamp it carries
  Us arrives_us;             // at the queue
};

class DropTailQueue {
 public:
  explicit DropTailQueue(std::uint32_t capacity_bytes = 0) : capacity_bytes_(capacity_bytes) {}

  bool push(const Packet& p) {
    if (bytes_ + p.wire_bytes > capacity_bytes_) return false;
    bytes_ += p.wire_bytes;
    packets_.push(p);
    return true;
  }
  Packet pop() {
    bytes_ -= packets_.front().wire_bytes;
    return packets_.pop();
  }
  bool empty() const { return packets_.empty(); }
  std::uint32_t size() const { return packets_.size(); }
  void reset(std::uint32_t capacity_bytes) {
    packets_.clear();
    bytes_ = 0;
    capacity_bytes_ = capacity_bytes;
  }

 private:
  Ring<Packet> packets_;
  std::uint32_t bytes_ = 0;
  std::uint32_t capacity_bytes_;
};

// What Mahimahi would have logged, without the opportunities, which the trace tells.
struct LinkLog {
  std::vector<double> arrival_ms, departure_ms, departure_delay_ms, drop_ms;
  std::vector<std::uint32_t> arrival_bytes, departure_bytes, drop_bytes;
};

class Link {
 public:
  // log: nullptr = keep none.
  void reset(std::span<const std::uint32_t> trace_ms, std::uint32_t buffer_bytes, Us now_us, LinkLog* log) {
    schedule_ = Schedule(trace_ms);
    schedule_.seek_after(now_us / kUsPerMs);
    queue_.reset(buffer_bytes);
    in_transit_left_bytes_ = 0;
    dropped_pkts_ = 0;
    log_ = log;
  }

  // Takes a packet at p.arrives_us. Opportunities up to and including that millisecond are past it, as in mm-link.
  void arrive(const Packet& p) {
    const std::uint64_t now_ms = p.arrives_us / kUsPerMs;
    if (idle()) schedule_.skip_until(now_ms);  // lost opportunities
    if (log_) {
      log_->arrival_ms.push_back(static_cast<double>(now_ms));
      log_->arrival_bytes.push_back(p.wire_bytes);
    }
    if (queue_.push(p)) return;
    ++dropped_pkts_;
    if (log_) {
      log_->drop_ms.push_back(static_cast<double>(now_ms));
      log_->drop_bytes.push_back(p.wire_bytes);
    }
  }

  // Time of the next opportunity that something waits for.
  Us next_us() const { return idle() ? kNever : schedule_.next_ms() * kUsPerMs; }

  // Uses that opportunity; deliver(packet) is called for each packet whose last byte it carries.
  template <class Deliver>
  void transmit(Deliver&& deliver) {
    const std::uint64_t now_ms = schedule_.next_ms();
    schedule_.advance();
    std::uint32_t left_bytes = kOpportunityBytes;
    while (left_bytes > 0 && !idle()) {
      if (in_transit_left_bytes_ == 0) {
        in_transit_ = queue_.pop();
        in_transit_left_bytes_ = in_transit_.wire_bytes;
      }
      const std::uint32_t carried_bytes = std::min(left_bytes, in_transit_left_bytes_);
      left_bytes -= carried_bytes;
      in_transit_left_bytes_ -= carried_bytes;
      if (in_transit_left_bytes_ > 0) return;  // goes on at the next opportunity
      if (log_) {
        log_->departure_ms.push_back(static_cast<double>(now_ms));
        log_->departure_bytes.push_back(in_transit_.wire_bytes);
        log_->departure_delay_ms.push_back(static_cast<double>(now_ms - in_transit_.arrives_us / kUsPerMs));
      }
      deliver(in_transit_);
    }
  }

  const Schedule& schedule() const { return schedule_; }
  // Waiting or half sent.
  std::uint32_t queued_pkts() const { return queue_.size() + (in_transit_left_bytes_ > 0 ? 1 : 0); }
  std::uint64_t dropped_pkts() const { return dropped_pkts_; }

 private:
  bool idle() const { return queue_.empty() && in_transit_left_bytes_ == 0; }

  Schedule schedule_;
  DropTailQueue queue_;
  Packet in_transit_{};
  std::uint32_t in_transit_left_bytes_ = 0;
  std::uint64_t dropped_pkts_ = 0;
  LinkLog* log_ = nullptr;
};

}  // namespace reinet

#endif
