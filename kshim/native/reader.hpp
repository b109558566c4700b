// SPDX-License-Identifier: Apache-2.0
// The reader: takes the records of one loaded object from mapped memory, adds the silences that no ACK reports, and
// sees to it that a flow which had a record ends with exactly one CLOSED, even where the ring buffer overflowed.
#pragma once

#include <cstdint>
#include <vector>

#include "kshim/native/ledger.hpp"
#include "kshim/native/memory.hpp"

namespace reinet {

class Reader {
 public:
  // What is in the ring buffer by now is old news of flows that this reader never heard of, and is left out.
  explicit Reader(Memory& memory);

  // Waits until there is a record, the time is over or a signal came; returns all there are, oldest first.
  std::vector<reinet_flow_stats> poll(int timeout_ms);
  // What was recorded of the flows' ACKs so far; does not wait.
  std::vector<reinet_event> take_events();

 private:
  void take_records();
  void scan(std::uint64_t now_ns);
  void report_silence(std::uint32_t slot, std::uint64_t cookie, std::uint64_t now_ns);

  Memory& memory_;
  Ledger ledger_;
  std::vector<std::uint64_t> reported_ns_;  // by slot: the last silence record
  std::vector<std::uint64_t> peers_;        // by slot: the latest record's, which a slot does not tell
  std::uint64_t scanned_ns_ = 0;
};

}  // namespace reinet
