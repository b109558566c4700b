// SPDX-License-Identifier: Apache-2.0
// Where a congestion control's name becomes its type. The usual path, one flow and one link, is compiled for each of
// them; all others hold variants of flows.
#include "envs/sim/make_simulation.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/cc/congestion_controls.hpp"
#include "envs/sim/path/cell.hpp"

namespace reinet {
namespace {

template <class... Controls>
std::variant<Flow<Controls>...> any_flow(ControlList<Controls...>);
using AnyFlow = decltype(any_flow(CongestionControls{}));

template <class Use>
void with_control(const std::string& cc, Use&& use) {
  if (!with_congestion_control(cc, use)) throw std::invalid_argument("the simulator has no congestion control " + cc);
}

Link link_of(const PathSetup& setup, std::size_t flow, LinkLog* log) {
  QueueConfig queue = setup.queue;
  queue.seed += flow;
  const bool is_cell = setup.fair_window_ms > 0.0;
  return Link(setup.flows[flow].trace_ms, queue, setup.start_us, is_cell ? 0 : setup.late_us, log);
}

template <class Flows, class Bottleneck>
std::unique_ptr<Simulation> simulation_of(const PathSetup& setup, std::unique_ptr<WiredLink> wired, Flows flows,
                                          Bottleneck bottleneck) {
  return std::make_unique<PathSimulation<Flows, Bottleneck>>(setup.start_us, std::move(wired), std::move(flows),
                                                             std::move(bottleneck));
}

}  // namespace

std::unique_ptr<Simulation> make_simulation(const PathSetup& setup, const reinet_period_config& period, LinkLog* log) {
  auto wired = setup.wired.empty() ? nullptr : std::make_unique<WiredLink>(setup.wired, setup.wired_buffer_bytes);
  const bool is_cell = setup.fair_window_ms > 0.0;
  if (setup.flows.size() == 1 && !is_cell) {
    std::unique_ptr<Simulation> simulation;
    with_control(setup.flows[0].cc, [&]<class Control>() {
      Alone<Flow<Control>> flow{Flow<Control>(setup.flows[0].flow, 0, period, wired.get())};
      simulation = simulation_of(setup, std::move(wired), std::move(flow), link_of(setup, 0, log));
    });
    return simulation;
  }
  std::vector<AnyFlow> flows;
  std::vector<Link> users;
  flows.reserve(setup.flows.size());
  for (std::size_t i = 0; i < setup.flows.size(); ++i) {
    with_control(setup.flows[i].cc, [&]<class Control>() {
      flows.emplace_back(std::in_place_type<Flow<Control>>, setup.flows[i].flow, static_cast<std::uint16_t>(i), period,
                         wired.get());
    });
    if (is_cell) users.push_back(link_of(setup, i, log));
  }
  if (!is_cell) return simulation_of(setup, std::move(wired), std::move(flows), link_of(setup, 0, log));
  return simulation_of(setup, std::move(wired), std::move(flows),
                       Cell(std::move(users), setup.fair_window_ms, setup.start_us));
}

}  // namespace reinet
