// SPDX-License-Identifier: Apache-2.0
#include "kshim/native/answering.hpp"

#include <algorithm>

#include "kshim/native/cap_writer.hpp"
#include "kshim/native/clock.hpp"

namespace reinet {

namespace {

constexpr std::uint64_t kNsPerMs = 1'000'000;

void sleep_ns(std::uint64_t ns) {
  const timespec left{static_cast<time_t>(ns / REINET_NS_PER_S), static_cast<long>(ns % REINET_NS_PER_S)};
  nanosleep(&left, nullptr);  // a signal ends it early, which does no harm
}

}  // namespace

Answered Answering::answer(Reader& reader, Memory& memory, Reflex& reflex, const Patience& patience) {
  Answered done;
  std::uint64_t end_ns = 0;
  int timeout_ms = patience.timeout_ms;
  for (;;) {
    std::vector<reinet_flow_stats> records = reader.poll(timeout_ms);
    const std::uint64_t came_ns = monotonic_ns();
    for (reinet_flow_stats& record : records) {
      Verdict verdict{};
      Answer said = Answer::none;
      if (record.flags & REINET_FLAG_CLOSED) {
        reflex.forget(record.slot, record.cookie);
        // Whoever has the slot by now with the same cookie has not been decided on: this is the ended flow's.
        lift_cap(memory.cap(record.slot), record.cookie);
      } else {
        said = reflex.answer(record, came_ns, verdict);
      }
      if (said != Answer::none)
        write_cap(memory.cap(record.slot), record.cookie, came_ns + reflex.lease_ns(), verdict.allowed_pkts,
                  record.target_us);
      done.records.push_back(record);
      done.verdicts.push_back(verdict);
      done.answers.push_back(said);
      done.stored_ns.push_back(monotonic_ns());
    }
    if (end_ns == 0) {
      if (records.empty()) return done;
      end_ns = came_ns + static_cast<std::uint64_t>(patience.hold_ms) * kNsPerMs;
    }
    const std::uint64_t rest_ns = records.empty() ? 0 : rest_.after(came_ns, records.size(), patience.rest_ns);
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns + rest_ns >= end_ns || done.records.size() >= patience.most) return done;
    if (rest_ns != 0) sleep_ns(rest_ns);
    const std::uint64_t then_ns = rest_ns == 0 ? now_ns : monotonic_ns();
    timeout_ms = static_cast<int>((std::max(end_ns, then_ns) - then_ns + kNsPerMs - 1) / kNsPerMs);
  }
}

}  // namespace reinet
