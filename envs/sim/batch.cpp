// SPDX-License-Identifier: Apache-2.0
#include "envs/sim/batch.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace reinet {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

void require_trace(TraceMs ms) {
  require(!ms.empty() && ms.back() > 0, "a trace's last value must be above 0");
  require(std::is_sorted(ms.begin(), ms.end()), "a trace's values must not fall");
}

}  // namespace

Batch::Batch(std::size_t rows, const reinet_period_config& period, View view, bool record_log,
             const BatchOutputs& outputs, std::size_t threads)
    : period_(period),
      view_(std::move(view)),
      record_log_(record_log),
      rows_(rows),
      outputs_(outputs),
      workers_(threads) {}

void Batch::set_link(std::size_t row, const LinkOptions& link, PathTraces traces) {
  require(!link.flows.empty() && link.flows.size() <= kMaxFlows, "a path has 1 to 65535 flows");
  require(link.flows[0].stepped, "the first flow is stepped");
  const std::size_t channels = is_cell(link) ? link.flows.size() : 1;
  require(traces.links.size() == channels, "one trace per channel is needed");
  for (const SharedTrace& trace : traces.links) require_trace(trace.ms);
  if (!traces.uplink.ms.empty()) require_trace(traces.uplink.ms);
  Row& r = rows_.at(row);
  r.next_link = link;
  r.next_traces = std::move(traces);
}

void Batch::start(std::span<const std::int32_t> rows) {
  for (const std::int32_t row : rows) start(rows_.at(static_cast<std::size_t>(row)));
}

void Batch::run(std::span<const std::int32_t> rows) {
  workers_.for_each(rows.size(), [&](std::size_t i) { run(static_cast<std::size_t>(rows[i])); });
  refuse_stalled();
}

void Batch::step(std::span<const float> actions) {
  require(actions.size() == rows_.size(), "one action per link is needed");
  require_started();
  workers_.for_each(rows_.size(), [&](std::size_t i) {
    if (!outputs_.decided[i]) return run(i);
    reinet_flow_stats latest;
    std::memcpy(&latest, outputs_.stats + i * sizeof(latest), sizeof(latest));
    const std::uint32_t cap_pkts =
        cap_from_action(view_.head, actions[i], latest.cwnd_pkts, outputs_.rule_pkts[i], kMaxCapPkts);
    run_capped(i, outputs_.may_cap[i] ? cap_pkts : 0);
  });
  refuse_stalled();
}

void Batch::step_caps(std::span<const std::uint32_t> caps_pkts) {
  require(caps_pkts.size() == rows_.size(), "one cap per link is needed");
  require_started();
  workers_.for_each(rows_.size(), [&](std::size_t i) { run_capped(i, caps_pkts[i]); });
  refuse_stalled();
}

void Batch::clairvoyant_caps(std::span<const std::uint64_t> horizons_ms, std::span<std::uint32_t> caps_pkts) const {
  require_started();
  require(caps_pkts.size() == rows_.size() && horizons_ms.size() == rows_.size(),
          "one cap and one horizon per link are needed");
  for (std::size_t i = 0; i < rows_.size(); ++i)
    caps_pkts[i] = rows_[i].simulation->clairvoyant_cap_pkts(rows_[i].flow, horizons_ms[i]);
}

void Batch::hidden(std::span<const std::uint64_t> horizons_ms, float* values) const {
  require_started();
  std::vector<std::uint64_t> coming(horizons_ms.size() + 1);
  for (const Row& r : rows_) {
    *values++ = static_cast<float>(r.simulation->coming_pkts(r.flow, horizons_ms, coming));
    for (const std::uint64_t pkts : coming) *values++ = static_cast<float>(pkts);
  }
}

std::size_t Batch::memory_bytes(std::size_t row) const {
  const Row& r = at(row);
  const std::size_t output_bytes =
      view_.set.state_size() * sizeof(float) + sizeof(reinet_flow_stats) + 2 * sizeof(float) + 2;
  return sizeof(Row) + r.simulation->memory_bytes() + r.states->memory_bytes() + output_bytes;
}

RowLog Batch::log(std::size_t row, std::uint64_t until_ms) const {
  const Row& r = at(row);
  require(record_log_, "this batch keeps no log: make it with record_log=True");
  RowLog log{*r.log, {}, r.start_ms, r.simulation->now_ms()};
  Schedule schedule(r.traces.links[0].ms);
  until_ms = std::min(until_ms, log.end_ms);
  for (schedule.seek_after(log.start_ms); schedule.next_ms() <= until_ms; schedule.advance())
    log.opportunity_ms.push_back(static_cast<double>(schedule.next_ms()));
  return log;
}

void Batch::start(Row& r) {
  if (r.simulation) --started_;
  r.simulation.reset();  // before the traces that it reads
  r.traces = r.next_traces;
  const LinkOptions& link = r.next_link;
  std::vector<TraceMs> traces_ms;
  for (const SharedTrace& trace : r.traces.links) traces_ms.push_back(trace.ms);
  if (record_log_) r.log = std::make_unique<LinkLog>();
  r.simulation = make_simulation(link, traces_ms, r.traces.uplink.ms, period_, r.log.get());
  r.states = view_.set.make(view_.config.reward.kind, link.flows.size());
  r.groups.assign(is_cell(link) ? link.flows.size() : 1, PeerGroup());
  r.neighbours.assign(link.flows.size(), {});
  r.flow = 0;
  r.start_ms = link.start_offset_ms;
  ++started_;
}

void Batch::run_capped(std::size_t row, std::uint32_t cap_pkts) {
  rows_[row].simulation->set_cap(rows_[row].flow, cap_pkts);
  run(row);
}

void Batch::run(std::size_t row) {
  Row& r = rows_[row];
  reinet_flow_stats record{};
  const std::optional<std::uint32_t> flow = r.simulation->run_to_record(record);
  if (!flow) {
    any_stalled_ = r.stalled = true;
    return;
  }
  r.flow = *flow;
  record.cookie = row + 1 + (static_cast<std::uint64_t>(r.flow) << 32);
  record.slot = static_cast<std::uint32_t>(row);
  const std::size_t queue = r.groups.size() == 1 ? 0 : r.flow;  // flows of one queue go to one client
  record.peer = queue + 1;
  annotate(&r.groups[queue], record.cookie, r.neighbours[r.flow], record);
  std::memcpy(outputs_.stats + row * sizeof(record), &record, sizeof(record));
  const Offer offer = view_.config.reward.kind != RewardKind::deepcc ? offer_of(r) : Offer{};
  const Update update =
      r.states->update(r.flow, record, view_.config, offer, outputs_.states + row * view_.set.state_size());
  outputs_.decided[row] = update.decided;
  outputs_.rewards[row] = update.reward;
  outputs_.rule_pkts[row] = update.rule_pkts;
  outputs_.may_cap[row] = update.may_cap;
}

// Ends the simulations that gave up.
void Batch::refuse_stalled() {
  if (!any_stalled_.exchange(false)) return;
  std::string first;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    Row& r = rows_[row];
    if (!r.stalled) continue;
    if (first.empty())
      first = "link " + std::to_string(row) + ": its stepped flows have had no record for an hour or more, up to " +
              std::to_string(r.simulation->now_ms()) +
              " ms of trace time: nothing of theirs gets through, while others may; look at its loss, wired_mbps, "
              "trace, start_ms and flows, and reset it";
    r.stalled = false;
    r.simulation.reset();
    --started_;
  }
  throw Stalled(first);
}

// Of the flow's own trace in a cell, else of the link that all flows share.
Offer Batch::offer_of(const Row& r) const {
  const std::vector<SharedTrace>& links = r.traces.links;
  const TraceMs trace_ms = links[links.size() == 1 ? 0 : r.flow].ms;
  return {static_cast<double>(r.simulation->opportunities_seen(r.flow)) * kOpportunityBytes,
          regret_unit_bytes(trace_ms.size(), trace_ms.back())};
}

void Batch::require_started() const { require(started_ == rows_.size(), "reset() comes before step()"); }

const Batch::Row& Batch::at(std::size_t row) const {
  const Row& r = rows_.at(row);
  require(r.simulation != nullptr, "reset() comes first");
  return r;
}

}  // namespace reinet
