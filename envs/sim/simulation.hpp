// SPDX-License-Identifier: Apache-2.0
//
// Flows through one bottleneck, event by event: the same path as mm-delay around mm-link.
#ifndef REINET_SIM_HPP
#define REINET_SIM_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "envs/sim/earliest.hpp"
#include "envs/sim/flow.hpp"
#include "envs/sim/path/link.hpp"

namespace reinet {

// Where every packet ever sent is. sent = dropped + on_path + queued + delivered.
struct PacketCounts {
  std::uint64_t sent = 0, dropped = 0, on_path = 0, queued = 0, delivered = 0;
};

// A simulation gives up where no stepped flow has had a record for so long and for so many ACKs and timers of all
// flows: nothing of theirs gets through, and all else may go on for ever. Years without a packet have hardly any: 30 of
// them, the most for which a flow may be planned ahead (LATEST_MS of envs/link/spec.py), see 16 million SYN-ACKs lost.
constexpr Us kLongestWithoutRecordUs = 3'600'000'000;
constexpr std::uint64_t kMostEventsWithoutRecord = 20'000'000;  // some seconds' work, minutes' with Sprout's forecasts

class Simulation {
 public:
  virtual ~Simulation() = default;
  // Runs to the next record of a stepped flow, and returns the flow's number; record: all but cookie and slot. Returns
  // nothing where it gives up.
  virtual std::optional<std::uint32_t> run_to_record(reinet_flow_stats& record) = 0;
  // Sets the flow's cap, in force from its next ACK on, or the path's decision_ms later; 0 = none.
  virtual void set_cap(std::uint32_t flow, std::uint32_t cap_pkts) = 0;
  virtual PacketCounts packets() const = 0;
  virtual std::uint64_t now_ms() const = 0;
  // Returns the clairvoyant's cap: the opportunities of the flow's trace in its next minimum RTT and horizon, plus one.
  virtual std::uint32_t clairvoyant_cap_pkts(std::uint32_t flow, std::uint64_t horizon_ms) const = 0;
  // Returns the opportunities of the flow's trace from its first start to when what its ACKs now tell of left the
  // bottleneck.
  virtual std::uint64_t opportunities_seen(std::uint32_t flow) const = 0;
  // Fills the opportunities that the flow's trace has in each of these times from now, and, first, those of which its
  // sender cannot have heard yet; returns the packets queued now.
  virtual std::uint64_t coming_pkts(std::uint32_t flow, std::span<const std::uint64_t> horizons_ms,
                                    std::span<std::uint64_t> pkts) const = 0;
  // Returns the times of the flow's objects that have arrived.
  virtual const std::vector<ObjectTimes>& objects(std::uint32_t flow) const = 0;
  virtual std::size_t memory_bytes() const = 0;
};

// A flow whose congestion control is known when it is compiled costs no dispatch; flows of several kinds are variants.
template <class FlowKind, class Use>
decltype(auto) with_flow(FlowKind& flow, Use&& use) {
  if constexpr (requires { flow.valueless_by_exception(); })  // a variant
    return std::visit(use, flow);
  else
    return use(flow);
}

// One flow, in place, or several.
template <class FlowKind>
using Alone = std::array<FlowKind, 1>;
template <class Flows>
constexpr bool kAlone = false;
template <class FlowKind>
constexpr bool kAlone<Alone<FlowKind>> = true;

// Flows: Alone or a vector of variants; Bottleneck: Link or Cell.
template <class Flows, class Bottleneck>
class PathSimulation final : public Simulation {
 public:
  // Flows are numbered as they stand here, and at least one is stepped and never stops.
  PathSimulation(Us start_us, SharedLinks shared, Flows flows, Bottleneck bottleneck)
      : now_us_(start_us),
        shared_(std::move(shared)),
        flows_(std::move(flows)),
        bottleneck_(std::move(bottleneck)),
        arrivals_(flows_.size()),
        events_(flows_.size()) {
    for (std::uint32_t i = 0; i < flows_.size(); ++i) update(i);
  }

  // All that it calls is inlined (flatten) but what says that it is rare (noinline): a packet takes a few hundred
  // instructions, of which calls would be a third.
  [[gnu::flatten]] std::optional<std::uint32_t> run_to_record(reinet_flow_stats& record) override {
    const Us since_us = now_us_;
    for (std::uint64_t events = 0;;) {
      // A packet wakes the bottleneck, which uses up the opportunities that are due before it takes the packet in.
      const Us arrival_us = arrivals_.time_us(), event_us = events_.time_us();
      const Us opportunity_us = std::min(bottleneck_.next_us(), std::max(bottleneck_.due_us(), arrival_us));
      if (opportunity_us <= arrival_us && opportunity_us <= event_us) {
        now_us_ = std::max(now_us_, opportunity_us);
        bottleneck_.transmit(now_us_, [this](const Packet& p) { deliver(p); });
      } else if (arrival_us <= event_us) {
        now_us_ = arrival_us;
        arrive(arrivals_.flow());
      } else {
        now_us_ = std::max(now_us_, event_us);
        if (++events > kMostEventsWithoutRecord && now_us_ - since_us > kLongestWithoutRecordUs) [[unlikely]]
          return std::nullopt;
        const std::uint32_t number = events_.flow();
        const bool due = with_flow(flows_[number], [&](auto& f) { return f.on_event(now_us_, record) && f.stepped(); });
        update(number);
        if (due) return number;
      }
    }
  }

  void set_cap(std::uint32_t flow, std::uint32_t cap_pkts) override {
    with_flow(flows_[flow], [&](auto& f) { f.set_cap(cap_pkts, now_us_); });
  }

  PacketCounts packets() const override {
    PacketCounts counts;
    counts.dropped = bottleneck_.dropped_pkts();
    counts.queued = bottleneck_.queued_pkts();
    for (const auto& flow : flows_) {
      with_flow(flow, [&](const auto& f) {
        counts.sent += f.sent_pkts();
        counts.dropped += f.lost_pkts();
        counts.on_path += f.on_path_pkts();
        counts.delivered += f.delivered_pkts();
      });
    }
    return counts;
  }

  std::uint64_t now_ms() const override { return now_us_ / kUsPerMs; }

  std::uint32_t clairvoyant_cap_pkts(std::uint32_t flow, std::uint64_t horizon_ms) const override {
    return with_flow(flows_[flow], [&](const auto& f) {
      const std::uint64_t until_ms = (now_us_ + f.min_rtt_us()) / kUsPerMs + horizon_ms;
      const Schedule& trace = bottleneck_.schedule(flow);
      const std::uint64_t coming = trace.count_until(until_ms) - trace.count_until(now_ms());
      constexpr std::uint64_t kMostPkts = std::numeric_limits<std::uint32_t>::max() - 1;
      return static_cast<std::uint32_t>(std::min(coming * kOpportunityBytes / f.wire_bytes(), kMostPkts) + 1);
    });
  }

  std::uint64_t coming_pkts(std::uint32_t flow, std::span<const std::uint64_t> horizons_ms,
                            std::span<std::uint64_t> pkts) const override {
    const Schedule& trace = bottleneck_.schedule(flow);
    const std::uint64_t so_far = trace.count_until(now_ms());
    pkts[0] = so_far - opportunities_seen(flow);
    for (std::size_t i = 0; i < horizons_ms.size(); ++i)
      pkts[i + 1] = trace.count_until(now_ms() + horizons_ms[i]) - so_far;
    return bottleneck_.queued_pkts();
  }

  std::uint64_t opportunities_seen(std::uint32_t flow) const override {
    const Us back_us = with_flow(flows_[flow], [](const auto& f) { return f.way_back_us(); });
    return bottleneck_.schedule(flow).count_until((now_us_ - std::min(back_us, now_us_)) / kUsPerMs);
  }

  const std::vector<ObjectTimes>& objects(std::uint32_t flow) const override {
    return with_flow(flows_.at(flow), [](const auto& f) -> const std::vector<ObjectTimes>& { return f.objects(); });
  }

  std::size_t memory_bytes() const override {
    std::size_t bytes = sizeof(*this) + bottleneck_.heap_bytes() + arrivals_.heap_bytes() + events_.heap_bytes();
    if constexpr (!kAlone<Flows>) bytes += flows_.capacity() * sizeof(typename Flows::value_type);
    bytes += shared_.memory_bytes();
    for (const auto& flow : flows_) bytes += with_flow(flow, [](const auto& f) { return f.heap_bytes(); });
    return bytes;
  }

 private:
  void update(std::uint32_t number) {
    with_flow(flows_[number], [&](const auto& f) {
      arrivals_.set(number, f.arrival_us());
      events_.set(number, f.next_us());
    });
  }

  void arrive(std::uint32_t number) {
    with_flow(flows_[number], [&](auto& f) {
      bottleneck_.arrive(f.take_arrival());
      arrivals_.set(number, f.arrival_us());
    });
  }

  void deliver(const Packet& p) {
    const std::uint32_t number = kAlone<Flows> ? 0 : p.flow;
    with_flow(flows_[number], [&](auto& f) {
      f.on_packet(p, now_us_);
      events_.set(number, f.next_us());
    });
  }

  Us now_us_;
  SharedLinks shared_;
  using Next = std::conditional_t<kAlone<Flows>, OnlyFlow, Earliest>;
  Flows flows_;
  Bottleneck bottleneck_;
  Next arrivals_;  // at the bottleneck
  Next events_;    // of the flows' ends
};

}  // namespace reinet

#endif
