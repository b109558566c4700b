// SPDX-License-Identifier: Apache-2.0
// Records answered as they come: from the ring buffer through a loop's reflex to the caps, without the interpreter.
#pragma once

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

class Answering {
 public:
  Answered answer(Reader& reader, Memory& memory, Reflex& reflex, const Patience& patience);

 private:
  Rest rest_;
};

}  // namespace reinet
