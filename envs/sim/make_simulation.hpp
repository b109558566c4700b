// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_MAKE_SIMULATION_HPP
#define REINET_MAKE_SIMULATION_HPP

#include <cstdint>
#include <memory>
#include <span>

#include "core/period.h"
#include "envs/sim/options.hpp"
#include "envs/sim/path/link.hpp"
#include "envs/sim/simulation.hpp"

namespace reinet {

using TraceMs = std::span<const std::uint32_t>;

// Returns a path's simulation. traces_ms: the path's trace, or in a cell one for each flow. uplink_ms: the trace of the
// ACKs' direction, empty = more than they can fill. log: nullptr where none is kept. Traces and log outlive the result.
// Throws std::invalid_argument for an unknown congestion control or queue.
std::unique_ptr<Simulation> make_simulation(const LinkOptions& link, std::span<const TraceMs> traces_ms,
                                            TraceMs uplink_ms, const reinet_period_config& period, LinkLog* log);

}  // namespace reinet

#endif
