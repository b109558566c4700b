// SPDX-License-Identifier: Apache-2.0
// The rules of a slot without a kernel behind it: its cap, its silence, and the end of its flows.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "driven.hpp"
#include "kshim/native/cap_writer.hpp"
#include "kshim/native/ledger.hpp"
#include "kshim/native/silence.hpp"

namespace nb = nanobind;

namespace reinet {
namespace {

// The cap that a flow sees of what was written for a flow, maybe another one. before and sequence are what a former
// writer left.
std::uint32_t cap_seen(std::uint64_t written_for, std::uint64_t expires_ns, std::uint32_t cap_pkts,
                       std::uint64_t seen_by, std::uint64_t now_ns, std::uint64_t before, std::uint32_t sequence) {
  reinet_cap cap{};
  cap.cap_cookie = before;
  cap.sequence = sequence;
  write_cap(cap, written_for, expires_ns, cap_pkts, 0);
  std::uint64_t lease = 0;
  std::uint32_t target_us = 0;
  return reinet_cap_read(&cap, seen_by, &lease, &target_us) ? reinet_lease_cap_pkts(lease, now_ns) : 0;
}

// One thread writes the caps of two flows in turn; this one reads as the first of them. Counts what it saw that was its
// own, and what was the other's.
std::pair<std::uint64_t, std::uint64_t> caps_seen_while_written(double seconds) {
  constexpr std::uint64_t mine = 7, other = 8, end_ns = 1'000'000'000;
  constexpr std::uint32_t my_pkts = 10, other_pkts = 20;
  reinet_cap cap{};
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    while (!stop) {
      write_cap(cap, mine, end_ns, my_pkts, my_pkts);
      write_cap(cap, mine, end_ns + (1 << REINET_LEASE_UNIT_SHIFT), my_pkts, my_pkts);
      write_cap(cap, other, end_ns, other_pkts, other_pkts);
    }
  });
  std::uint64_t right = 0, wrong = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < until) {
    std::uint64_t lease = 0;
    std::uint32_t target_us = 0;
    if (!reinet_cap_read(&cap, mine, &lease, &target_us)) continue;
    const std::uint32_t cap_pkts = reinet_lease_cap_pkts(lease, end_ns - 1'000'000);
    ++(cap_pkts == my_pkts && target_us == my_pkts ? right : wrong);
  }
  stop = true;
  writer.join();
  return {right, wrong};
}

// What the reader reports at now_ns of a flow that it saw in a slot and that has been silent since its last ACK; the
// slot's memory as it is by then. Gives the record's cookie, cap and target. restarted: after an idle time, in the
// period that goes on; answered: the lease is not the one that stood when such a period ended.
std::optional<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>> silence(std::uint64_t seen, std::uint64_t owner,
                                                                               std::uint64_t last_ack_ns,
                                                                               std::uint64_t now_ns, bool restarted,
                                                                               bool answered) {
  reinet_slot slot{};
  reinet_flow_stats record{};
  slot.cookie = owner;
  slot.outstanding = 1;
  slot.period.start_ns = slot.period.last_sign_ns = last_ack_ns;
  slot.period.restarted = restarted;
  reinet_cap cap{};
  write_cap(cap, owner, now_ns + 1'000'000, 10, 50'000);
  if (!answered) slot.void_lease = cap.lease;
  if (!find_silence(slot, cap, seen, now_ns, 0, 30'000, record)) return std::nullopt;
  return std::tuple(record.cookie, record.cap_pkts, record.target_us);
}

// What becomes of records of one slot (cookie, closed), in order: the records that are given out, and whether the last
// one's flow counts as closed.
std::pair<std::vector<std::pair<std::uint64_t, bool>>, bool> account(
    const std::vector<std::pair<std::uint64_t, bool>>& records) {
  Ledger ledger(1);
  for (const auto& [cookie, closed] : records) {
    reinet_flow_stats record{};
    record.cookie = cookie;
    record.flags = closed ? REINET_FLAG_CLOSED : 0;
    ledger.take(record);
  }
  std::vector<std::pair<std::uint64_t, bool>> given;
  for (const reinet_flow_stats& record : ledger.give())
    given.emplace_back(record.cookie, record.flags & REINET_FLAG_CLOSED);
  return {given, ledger.has_closed(0, records.back().first)};
}

}  // namespace

void bind_slots(nb::module_& m) {
  m.def("cap_seen", &cap_seen, nb::arg("written_for"), nb::arg("expires_ns"), nb::arg("cap_pkts"), nb::arg("seen_by"),
        nb::arg("now_ns"), nb::arg("before") = 0, nb::arg("sequence") = 0);
  m.def("caps_seen_while_written", &caps_seen_while_written, nb::arg("seconds"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("silence", &silence, nb::arg("seen"), nb::arg("owner"), nb::arg("last_ack_ns"), nb::arg("now_ns"),
        nb::arg("restarted") = false, nb::arg("answered") = true);
  m.def("account", &account, nb::arg("records"));
}

}  // namespace reinet
