// SPDX-License-Identifier: Apache-2.0
// The reader: takes the records of one loaded object, adds the silences that no ACK reports, and sees to it that a flow
// which had a record ends with exactly one CLOSED, even where the ring buffer overflowed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kshim/native/ledger.hpp"
#include "kshim/native/object.hpp"

struct ring_buffer;

namespace reinet {

class Reader {
 public:
  Reader(const Object& object, bool events);

  // Waits until there is a record, the time is over or a signal came; returns all there are, oldest first.
  std::vector<reinet_flow_stats> poll(int timeout_ms);
  // What was recorded of the flows' ACKs so far; does not wait.
  std::vector<reinet_event> take_events();

 private:
  struct CloseRing {
    void operator()(ring_buffer*) const;
  };
  using Ring = std::unique_ptr<ring_buffer, CloseRing>;

  static int on_record(void* self, void* data, std::size_t bytes);
  static int on_event(void* self, void* data, std::size_t bytes);
  void scan(std::uint64_t now_ns);
  void report_silence(std::uint32_t slot, std::uint64_t cookie, std::uint64_t now_ns);

  const Object& object_;
  Ring records_, events_;
  Ledger ledger_;
  std::vector<reinet_event> taken_events_;
  std::vector<std::uint64_t> reported_ns_;  // by slot: the last silence record
  std::uint64_t scanned_ns_ = 0;
};

}  // namespace reinet
