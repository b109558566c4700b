// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_CLOCK_HPP
#define REINET_CLOCK_HPP

#include <cstdint>
#include <limits>

namespace reinet {

// Microseconds of whatever clock drives the law; in the simulator 0 is the trace's first start.
using Us = std::uint64_t;
constexpr Us kUsPerMs = 1000;
constexpr Us kNever = std::numeric_limits<Us>::max();

}  // namespace reinet

#endif
