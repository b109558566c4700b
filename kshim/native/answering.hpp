// SPDX-License-Identifier: Apache-2.0
// Records answered as they come: from the ring buffer through a loop's reflex to the caps, without the interpreter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/states/reflex.hpp"
#include "kshim/native/memory.hpp"
#include "kshim/native/reader.hpp"

namespace reinet {

// N records, those of flows that ended among them, with what was said of each.
struct Answered {
  std::vector<reinet_flow_stats> records;
  std::vector<Verdict> verdicts;
  std::vector<Answer> answers;
  std::vector<std::uint64_t> stored_ns;  // when the cap was stored
};

// How long to wait for the first record, to go on from there, and to rest between two looks while records come often;
// and after how many records to return early.
struct Patience {
  int timeout_ms, hold_ms;
  std::uint64_t rest_ns;
  std::size_t most;
};

// Where records come often, some of them are waited for: each look costs as much as many of them.
class Rest {
 public:
  // Returns for how long to rest after so many records that have come now.
  std::uint64_t after(std::uint64_t came_ns, std::size_t records, std::uint64_t most_ns) {
    const std::uint64_t apart_ns = (came_ns - latest_ns_) / records;
    latest_ns_ = came_ns;
    return apart_ns * kLeastRecords > most_ns ? 0 : std::min(most_ns, apart_ns * kWorthRecords);
  }

 private:
  // After so many records a look at the next ones is worth its system calls.
  static constexpr std::uint64_t kWorthRecords = 20;
  // A rest in which fewer are to be expected saves nothing.
  static constexpr std::uint64_t kLeastRecords = 2;

  std::uint64_t latest_ns_ = 0;  // when records last came
};

class Answering {
 public:
  Answered answer(Reader& reader, Memory& memory, Reflex& reflex, const Patience& patience);

 private:
  Rest rest_;
};

}  // namespace reinet
