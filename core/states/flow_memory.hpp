// SPDX-License-Identifier: Apache-2.0
//
// What a decision loop remembers for whoever looks at it: the latest records of each flow, and counts since the start.
// Every tick adds to it, which costs some tens of nanoseconds a record.
#ifndef REINET_FLOW_MEMORY_HPP
#define REINET_FLOW_MEMORY_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/flow_stats.h"
#include "core/states/feature.hpp"

namespace reinet {

// Counts values between bounds; one that equals a bound lies below it, as Prometheus has it.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value) {
    ++counts_[static_cast<std::size_t>(std::ranges::lower_bound(bounds_, value) - bounds_.begin())];
    total_ += value;
  }
  const std::vector<std::int64_t>& counts() const { return counts_; }
  double total() const { return total_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::int64_t> counts_;
  double total_ = 0;
};

class FlowMemory {
 public:
  static constexpr std::size_t kKept = 5;  // records of each flow: they fit a screen, and take 760 bytes
  static constexpr std::size_t kVerdicts = 256;

  FlowMemory(std::size_t rows, const std::vector<double>& delays_s, const std::vector<double>& rates_bytes_per_s,
             const std::vector<double>& latencies_s)
      : rtt_s(delays_s), queueing_s(delays_s), rate(rates_bytes_per_s), latency_s(latencies_s), rows_(rows) {}

  std::size_t size() const { return rows_.size(); }
  void grow(std::size_t rows) { rows_.resize(std::max(rows, rows_.size())); }

  // Empties the row of a new flow. One that connects anew has the cookie of the one before.
  void reset(std::size_t row) { rows_[row] = {}; }

  // Takes a record of the flow that owns a row; of one flow they come in order.
  void record(std::size_t row, const reinet_flow_stats& s) {
    Row& own = rows_[row];
    if (own.cookie != s.cookie) own = {.cookie = s.cookie};
    own.records[own.heard++ % kKept] = s;
    if (!has_sample(s)) return;
    rtt_s.add(s.rtt_mean_us * 1e-6);
    queueing_s.add(std::max(s.rtt_mean_us * 1e-6 - s.min_rtt_us * 1e-6, 0.0));
    rate.add(static_cast<double>(s.delivery_rate_bytes_per_s));
  }

  // Counts a decision whose cap was stored at now_ns, on a record that ended at record_ns.
  void decide(std::size_t row, std::uint64_t now_ns, std::uint64_t record_ns, std::uint8_t verdict) {
    rows_[row].decided_ns = now_ns;
    latency_s.add(now_ns > record_ns ? static_cast<double>(now_ns - record_ns) / 1e9 : 0.0);
    ++verdicts[verdict];
  }

  // Copies the records that are kept of the flow that owns a row, oldest first, and says how many; none if the row is
  // another's by now. decided_ns: when its latest decision was, 0 = never.
  std::size_t seen(std::size_t row, std::uint64_t cookie, reinet_flow_stats* records, std::uint64_t& decided_ns) const {
    const Row& own = rows_[row];
    decided_ns = 0;
    if (own.cookie != cookie) return 0;
    const std::size_t kept = std::min(own.heard, kKept);
    for (std::size_t i = 0; i < kept; ++i) records[i] = own.records[(own.heard - kept + i) % kKept];
    if (kept) decided_ns = own.decided_ns;
    return kept;
  }

  Histogram rtt_s, queueing_s, rate, latency_s;
  std::array<std::int64_t, kVerdicts> verdicts{};  // decisions, by the verdict's number

 private:
  struct Row {
    std::uint64_t cookie = 0, decided_ns = 0;
    std::size_t heard = 0;
    std::array<reinet_flow_stats, kKept> records{};
  };
  std::vector<Row> rows_;
};

}  // namespace reinet

#endif
