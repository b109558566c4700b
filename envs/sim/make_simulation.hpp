// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_MAKE_SIMULATION_HPP
#define REINET_MAKE_SIMULATION_HPP

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "envs/sim/flow.hpp"
#include "envs/sim/path/link.hpp"
#include "envs/sim/path/wired.hpp"
#include "envs/sim/simulation.hpp"

namespace reinet {

struct FlowSetup {
  FlowConfig flow;
  std::string cc;
  std::span<const std::uint32_t> trace_ms;  // its channel, in a cell
};

struct PathSetup {
  Us start_us;
  QueueConfig queue;  // of the bottleneck, or of each user in a cell
  std::vector<RateStep> wired;
  std::uint32_t wired_buffer_bytes;
  Us late_us;             // how late the link's process wakes
  double fair_window_ms;  // of a cell's scheduler; 0 = no cell, all flows share the queue and the first one's trace
  std::vector<FlowSetup> flows;
};

// Throws std::invalid_argument for an unknown congestion control. log: nullptr = keep none. Traces and log outlive the
// result.
std::unique_ptr<Simulation> make_simulation(const PathSetup& setup, const reinet_period_config& period, LinkLog* log);

}  // namespace reinet

#endif
