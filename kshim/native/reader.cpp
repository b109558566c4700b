// SPDX-License-Identifier: Apache-2.0
#include "kshim/native/reader.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "kshim/native/clock.hpp"
#include "kshim/native/failure.hpp"
#include "kshim/native/silence.hpp"

namespace reinet {

namespace {

// A silence is reported at most a tenth late. A scan touches one cache line of each slot that was ever used.
constexpr std::uint64_t scan_interval_ns = REINET_SILENCE_NS / 10;
constexpr std::uint64_t ns_per_ms = 1'000'000;

template <typename T>
T load(const T& shared) {
  return __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
}

}  // namespace

Reader::Reader(Memory& memory)
    : memory_(memory), ledger_(memory.max_flows()), reported_ns_(memory.max_flows()), peers_(memory.max_flows()) {
  memory_.records.discard();
}

void Reader::take_records() {
  memory_.records.consume<reinet_flow_stats>([this](const reinet_flow_stats& record) {
    if (record.slot >= memory_.max_flows()) return;
    peers_[record.slot] = record.peer;
    ledger_.take(record);
  });
}

void Reader::scan(std::uint64_t now_ns) {
  const std::uint32_t slots = std::min(memory_.slots_used(), memory_.max_flows());
  for (std::uint32_t slot = 0; slot < slots; slot++) {
    const std::uint64_t cookie = load(memory_.slot(slot).cookie);
    const auto changed_hands = [&] { return ledger_.owner(slot) && ledger_.owner(slot) != cookie; };
    if (changed_hands()) {
      take_records();  // a flow's CLOSED is sent before its slot changes hands
      if (changed_hands()) ledger_.close(slot, now_ns);
    }
    if (cookie && !ledger_.has_closed(slot, cookie)) report_silence(slot, cookie, now_ns);
  }
}

void Reader::report_silence(std::uint32_t slot, std::uint64_t cookie, std::uint64_t now_ns) {
  reinet_flow_stats record{};
  if (!find_silence(memory_.slot(slot), memory_.cap(slot), cookie, now_ns, reported_ns_[slot],
                    memory_.default_target_us(), record))
    return;
  reported_ns_[slot] = now_ns;
  record.slot = slot;
  if (ledger_.owner(slot) == cookie) record.peer = peers_[slot];
  ledger_.take(record);
}

std::vector<reinet_flow_stats> Reader::poll(int timeout_ms) {
  const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(std::max(timeout_ms, 0)) * ns_per_ms;
  for (;;) {
    take_records();
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns - scanned_ns_ >= scan_interval_ns) {
      scan(now_ns);
      scanned_ns_ = now_ns;
    }
    if (!ledger_.empty() || now_ns >= end_ns) break;
    const std::uint64_t until_ns = std::min(end_ns, scanned_ns_ + scan_interval_ns);
    const std::uint64_t wait_ms = (until_ns - now_ns + ns_per_ms - 1) / ns_per_ms;
    if (!memory_.records.wait(static_cast<int>(wait_ms))) break;
  }
  return ledger_.give();
}

std::vector<reinet_event> Reader::take_events() {
  if (!memory_.events) throw Failure(ENODATA, "read recorded ACKs: the shim was started without record_events");
  std::vector<reinet_event> events;
  memory_.events->consume<reinet_event>([&](const reinet_event& event) { events.push_back(event); });
  return events;
}

}  // namespace reinet
