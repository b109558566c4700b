// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_QUEUE_HPP
#define REINET_QUEUE_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "envs/sim/path/codel.hpp"
#include "envs/sim/path/fifo.hpp"
#include "envs/sim/path/pie.hpp"

namespace reinet {

enum class QueueKind : std::uint8_t { kDropTail, kDropHead, kCoDel, kPie };

// By mm-link's names; infinite is droptail without limits.
constexpr std::array<std::pair<std::string_view, QueueKind>, 5> kQueues{{
    {"infinite", QueueKind::kDropTail},
    {"droptail", QueueKind::kDropTail},
    {"drophead", QueueKind::kDropHead},
    {"codel", QueueKind::kCoDel},
    {"pie", QueueKind::kPie},
}};

inline QueueKind queue_named(std::string_view name) {
  for (const auto& [known, kind] : kQueues)
    if (known == name) return kind;
  throw std::invalid_argument("the simulator has no queue " + std::string(name));
}

struct QueueConfig {
  QueueKind kind = QueueKind::kDropTail;
  std::uint32_t limit_bytes = 0, limit_pkts = 0;  // 0 = no such limit
  std::uint32_t target_ms = 0;                    // CoDel's target, PIE's reference delay
  std::uint32_t interval_ms = 0;                  // CoDel's interval, PIE's largest burst
  std::uint64_t seed = 0;                         // of PIE's dice
};

// mm-link's queues. A switch and no base class: one kind per link, which the branch predictor learns at once. CoDel and
// PIE are calls, so that droptail, which is what most links have, is inlined without them.
class Queue {
 public:
  Queue(const QueueConfig& config, std::uint64_t now_ms)
      : kind_(config.kind),
        fifo_(config.limit_bytes, config.limit_pkts),
        codel_(config.target_ms, config.interval_ms),
        pie_(config.target_ms, config.interval_ms, now_ms, config.seed) {}

  // Takes a packet in; drop(packet) is called for each that is thrown away, be it this one or another.
  template <class Drop>
  void push(const Packet& p, std::uint64_t now_ms, Drop&& drop) {
    if (kind_ == QueueKind::kDropHead) {
      fifo_.push(p);
      while (fifo_.overfull()) drop(fifo_.pop());
      return;
    }
    bool admitted = fifo_.has_room_for(p);
    if (kind_ == QueueKind::kPie) admitted = pie_.admits(fifo_, admitted, now_ms);
    if (admitted)
      fifo_.push(p);
    else
      drop(p);
  }

  // Takes a packet, of which there must be one; it is good until the next push.
  template <class Drop>
  const Packet& pop(std::uint64_t now_ms, Drop&& drop) {
    if (kind_ == QueueKind::kCoDel) return codel_.pop(fifo_, now_ms, drop);
    const Packet& p = fifo_.pop();
    if (kind_ == QueueKind::kPie) pie_.departed(p, fifo_, now_ms);
    return p;
  }

  bool empty() const { return fifo_.empty(); }
  std::uint32_t pkts() const { return fifo_.pkts(); }
  std::size_t heap_bytes() const { return fifo_.heap_bytes(); }

 private:
  QueueKind kind_;
  Fifo fifo_;
  CoDel codel_;
  Pie pie_;
};

}  // namespace reinet

#endif
