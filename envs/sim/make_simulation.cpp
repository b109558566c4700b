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
#include "envs/sim/flow.hpp"
#include "envs/sim/path/cell.hpp"
#include "envs/sim/path/wired.hpp"

namespace reinet {
namespace {

template <class... Controls>
std::variant<Flow<Controls>...> any_flow(ControlList<Controls...>);
using AnyFlow = decltype(any_flow(CongestionControls{}));

template <class Use>
void with_control(const std::string& cc, Use&& use) {
  if (!with_congestion_control(cc, use)) throw std::invalid_argument("the simulator has no congestion control " + cc);
}

// infinite is droptail without limits; CoDel and PIE have two times each, in the same places.
QueueConfig queue_of(const LinkOptions& link, std::size_t flow) {
  QueueConfig queue;
  queue.kind = queue_named(link.queue);
  if (link.queue != "infinite") {
    queue.limit_bytes = link.buffer_bytes;
    queue.limit_pkts = link.buffer_pkts;
  }
  const bool is_pie = queue.kind == QueueKind::kPie;
  queue.target_ms = is_pie ? link.pie_reference_ms : link.codel_target_ms;
  queue.interval_ms = is_pie ? link.pie_burst_ms : link.codel_interval_ms;
  queue.seed = link.seed + flow;
  return queue;
}

Link link_of(const LinkOptions& link, std::size_t flow, TraceMs trace_ms, LinkLog* log) {
  return Link(trace_ms, queue_of(link, flow), start_us(link), is_cell(link) ? 0 : link.late_us, log);
}

std::unique_ptr<Uplink> uplink_of(const LinkOptions& link, TraceMs trace_ms) {
  return trace_ms.empty() ? nullptr : std::make_unique<Uplink>(trace_ms, start_us(link), link.late_us);
}

std::unique_ptr<WiredLink> wired_of(const LinkOptions& link, LinkLog* log) {
  if (link.wired_mbps.empty()) return nullptr;
  std::vector<RateStep> steps;
  for (const auto& [from_ms, mbps] : link.wired_mbps) steps.push_back({start_us(link) + us_from_ms(from_ms), mbps});
  return std::make_unique<WiredLink>(std::move(steps), link.wired_buffer_bytes, log);
}

template <class Flows, class Bottleneck>
std::unique_ptr<Simulation> simulation_of(const LinkOptions& link, SharedLinks shared, Flows flows,
                                          Bottleneck bottleneck) {
  return std::make_unique<PathSimulation<Flows, Bottleneck>>(start_us(link), std::move(shared), std::move(flows),
                                                             std::move(bottleneck));
}

}  // namespace

std::unique_ptr<Simulation> make_simulation(const LinkOptions& link, std::span<const TraceMs> traces_ms,
                                            TraceMs uplink_ms, const reinet_period_config& period, LinkLog* log) {
  SharedLinks shared{wired_of(link, log), uplink_of(link, uplink_ms)};
  if (link.flows.size() == 1 && !is_cell(link)) {
    std::unique_ptr<Simulation> simulation;
    with_control(link.flows[0].cc, [&]<class Control>() {
      Alone<Flow<Control>> flow{Flow<Control>(link, 0, period, shared)};
      simulation = simulation_of(link, std::move(shared), std::move(flow), link_of(link, 0, traces_ms[0], log));
    });
    return simulation;
  }
  std::vector<AnyFlow> flows;
  std::vector<Link> users;
  flows.reserve(link.flows.size());
  for (std::size_t i = 0; i < link.flows.size(); ++i) {
    with_control(link.flows[i].cc, [&]<class Control>() {
      flows.emplace_back(std::in_place_type<Flow<Control>>, link, static_cast<std::uint16_t>(i), period, shared);
    });
    if (is_cell(link)) users.push_back(link_of(link, i, traces_ms[i], log));
  }
  if (!is_cell(link))
    return simulation_of(link, std::move(shared), std::move(flows), link_of(link, 0, traces_ms[0], log));
  return simulation_of(link, std::move(shared), std::move(flows),
                       Cell(std::move(users), link.fair_window_ms, start_us(link)));
}

}  // namespace reinet
