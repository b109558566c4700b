// SPDX-License-Identifier: Apache-2.0
// A batch of simulated links for Python; core/sim.py holds the class that users see and owns the arrays written here.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "congestion_controls.hpp"
#include "make_simulation.hpp"
#include "workers.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace reinet {
namespace {

template <class T>
nb::object array_of(const std::vector<T>& values) {
  auto* copy = new std::vector<T>(values);
  nb::capsule owner(copy, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(copy->data(), {copy->size()}, owner));
}

class SimBatch {
 public:
  SimBatch(std::size_t rows, std::uint64_t min_period_ns, bool packet_timed, int head,
           const Matrix<const double>& table, bool record_log, Matrix<float> states, Vector<float> rewards,
           Matrix<std::uint8_t> stats, Vector<float> rule_pkts, Vector<std::uint8_t> decided, std::size_t threads)
      : period_{min_period_ns, packet_timed ? 1U : 0U, 0},
        head_(static_cast<Head>(head)),
        normalise_(table_from(table)),
        record_log_(record_log),
        rows_(rows),
        states_(std::move(states)),
        rewards_(std::move(rewards)),
        stats_(std::move(stats)),
        rule_pkts_(std::move(rule_pkts)),
        decided_(std::move(decided)),
        workers_(threads) {
    require_rows_of<reinet_flow_stats>(stats_);
    require(states_.shape(0) == rows && states_.shape(1) == kStateSize && rewards_.shape(0) == rows &&
                stats_.shape(0) == rows && rule_pkts_.shape(0) == rows && decided_.shape(0) == rows,
            "output arrays do not fit the batch");
  }
  SimBatch(const SimBatch&) = delete;
  SimBatch& operator=(const SimBatch&) = delete;

  // From the row's next reset on. traces: one for all flows, or in a cell one for each.
  void set_link(std::size_t row, const PathSetup& setup, const std::vector<Vector<const std::uint32_t>>& traces_ms) {
    require(!setup.flows.empty() && setup.flows.size() <= kMaxFlows, "a path has 1 to 65535 flows");
    require(setup.flows[0].flow.stepped, "the first flow is stepped");
    const std::size_t channels = setup.fair_window_ms > 0.0 ? setup.flows.size() : 1;
    require(traces_ms.size() == channels, "one trace per channel is needed");
    for (const auto& trace_ms : traces_ms) {
      const std::uint32_t* end = trace_ms.data() + trace_ms.shape(0);
      require(trace_ms.shape(0) > 0 && end[-1] > 0, "a trace's last value must be above 0");
      require(std::is_sorted(trace_ms.data(), end), "a trace's values must not fall");
    }
    Row& r = rows_.at(row);
    r.next_setup = setup;
    r.next_traces_ms = traces_ms;
  }

  void set_normaliser(const Matrix<const double>& table) { normalise_ = Normaliser(table_from(table)); }

  void reset(const Vector<const std::int32_t>& rows) {
    for (std::size_t i = 0; i < rows.shape(0); ++i) start(rows_.at(static_cast<std::size_t>(rows(i))));
    nb::gil_scoped_release release;
    workers_.for_each(rows.shape(0), [&](std::size_t i) { run(static_cast<std::size_t>(rows(i))); });
  }

  void step(const Vector<const float>& actions) {
    require(actions.shape(0) == rows_.size(), "one action per link is needed");
    require_started();
    nb::gil_scoped_release release;
    workers_.for_each(rows_.size(), [&](std::size_t i) {
      const std::uint32_t cwnd_pkts = record_at<reinet_flow_stats>(stats_, i).cwnd_pkts;
      run_capped(i, cap_from_action(head_, actions(i), cwnd_pkts, rule_pkts_(i), kMaxCapPkts));
    });
  }

  void step_caps(const Vector<const std::uint32_t>& caps_pkts) {
    require(caps_pkts.shape(0) == rows_.size(), "one cap per link is needed");
    require_started();
    nb::gil_scoped_release release;
    workers_.for_each(rows_.size(), [&](std::size_t i) { run_capped(i, caps_pkts(i)); });
  }

  void clairvoyant_caps(std::uint64_t horizon_ms, const Vector<std::uint32_t>& caps_pkts) const {
    require_started();
    require(caps_pkts.shape(0) == rows_.size(), "one cap per link is needed");
    for (std::size_t i = 0; i < rows_.size(); ++i)
      caps_pkts(i) = rows_[i].simulation->clairvoyant_cap_pkts(rows_[i].flow, horizon_ms);
  }

  nb::dict packets(std::size_t row) const {
    const PacketCounts counts = at(row).simulation->packets();
    nb::dict d;
    d["sent_pkts"] = counts.sent;
    d["dropped_pkts"] = counts.dropped;
    d["on_path_pkts"] = counts.on_path;
    d["queued_pkts"] = counts.queued;
    d["delivered_pkts"] = counts.delivered;
    return d;
  }

  std::size_t memory_bytes(std::size_t row) const {
    const Row& r = at(row);
    constexpr std::size_t output_bytes = kStateSize * sizeof(float) + sizeof(reinet_flow_stats) + 2 * sizeof(float) + 1;
    return sizeof(Row) + r.simulation->memory_bytes() + r.states.capacity() * sizeof(FlowState) + output_bytes;
  }

  nb::dict log(std::size_t row) const {
    const Row& r = at(row);
    require(record_log_, "this batch keeps no log: make it with record_log=True");
    const std::uint64_t start_ms = r.start_ms, end_ms = r.simulation->now_ms();
    std::vector<double> opportunity_ms;
    Schedule schedule({r.traces_ms[0].data(), r.traces_ms[0].shape(0)});
    for (schedule.seek_after(start_ms); schedule.next_ms() <= end_ms; schedule.advance())
      opportunity_ms.push_back(static_cast<double>(schedule.next_ms()));
    nb::dict d;
    d["arrival_ms"] = array_of(r.log->arrival_ms);
    d["arrival_bytes"] = array_of(r.log->arrival_bytes);
    d["arrival_flow"] = array_of(r.log->arrival_flow);
    d["opportunity_ms"] = array_of(opportunity_ms);
    d["departure_ms"] = array_of(r.log->departure_ms);
    d["departure_bytes"] = array_of(r.log->departure_bytes);
    d["departure_flow"] = array_of(r.log->departure_flow);
    d["departure_delay_ms"] = array_of(r.log->departure_delay_ms);
    d["drop_ms"] = array_of(r.log->drop_ms);
    d["drop_bytes"] = array_of(r.log->drop_bytes);
    d["drop_flow"] = array_of(r.log->drop_flow);
    d["start_ms"] = static_cast<double>(start_ms);
    d["end_ms"] = static_cast<double>(end_ms);
    return d;
  }

 private:
  static constexpr std::size_t kMaxFlows = 65535;  // Packet::flow has 16 bits

  struct Row {
    std::unique_ptr<Simulation> simulation;
    std::unique_ptr<LinkLog> log;
    std::vector<FlowState> states;  // of the flows
    std::uint32_t flow = 0;         // the one that the latest record is about
    std::uint64_t start_ms = 0;
    std::vector<Vector<const std::uint32_t>> traces_ms;  // of the running simulation
    // Used from the next reset on.
    PathSetup next_setup;
    std::vector<Vector<const std::uint32_t>> next_traces_ms;
  };

  void start(Row& r) {
    if (r.simulation) --started_;
    r.simulation.reset();  // before the traces that it reads
    r.traces_ms = r.next_traces_ms;
    PathSetup setup = r.next_setup;
    for (std::size_t i = 0; i < setup.flows.size(); ++i) {
      const auto& trace_ms = r.traces_ms[r.traces_ms.size() == 1 ? 0 : i];
      setup.flows[i].trace_ms = {trace_ms.data(), trace_ms.shape(0)};
    }
    if (record_log_) r.log = std::make_unique<LinkLog>();
    r.simulation = make_simulation(setup, period_, r.log.get());
    r.states.assign(setup.flows.size(), FlowState{});
    r.flow = 0;
    r.start_ms = setup.start_us / kUsPerMs;
    ++started_;
  }

  void run_capped(std::size_t row, std::uint32_t cap_pkts) {
    rows_[row].simulation->set_cap(rows_[row].flow, cap_pkts);
    run(row);
  }

  void run(std::size_t row) {
    Row& r = rows_[row];
    reinet_flow_stats record{};
    r.flow = r.simulation->run_to_record(record);
    record.cookie = row + 1 + (static_cast<std::uint64_t>(r.flow) << 32);
    record.slot = static_cast<std::uint32_t>(row);
    put_record(stats_, row, record);
    FlowState& state = r.states[r.flow];
    decided_(row) = state.update(record, normalise_);
    std::memcpy(states_.data() + row * kStateSize, state.state(), kStateSize * sizeof(float));
    rewards_(row) = state.reward();
    rule_pkts_(row) = state.rule_pkts();
  }

  void require_started() const {
    require(started_ == rows_.size(), "reset() comes before step()");
  }

  const Row& at(std::size_t row) const {
    const Row& r = rows_.at(row);
    require(r.simulation != nullptr, "reset() comes first");
    return r;
  }

  reinet_period_config period_;
  Head head_;
  Normaliser normalise_;
  bool record_log_;
  std::vector<Row> rows_;
  std::size_t started_ = 0;  // rows that have a simulation
  Matrix<float> states_;
  Vector<float> rewards_;
  Matrix<std::uint8_t> stats_;
  Vector<float> rule_pkts_;
  Vector<std::uint8_t> decided_;
  Workers workers_;
};

}  // namespace

void bind_sim(nb::module_& m) {
  m.attr("OPPORTUNITY_BYTES") = kOpportunityBytes;
  m.attr("NEVER_US") = kNever;
  nb::enum_<QueueKind>(m, "QueueKind")
      .value("droptail", QueueKind::kDropTail)
      .value("drophead", QueueKind::kDropHead)
      .value("codel", QueueKind::kCoDel)
      .value("pie", QueueKind::kPie);
  nb::class_<QueueConfig>(m, "QueueConfig")
      .def(nb::init<QueueKind, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t>(), "kind"_a,
           "limit_bytes"_a, "limit_pkts"_a, "target_ms"_a, "interval_ms"_a, "seed"_a);
  nb::class_<FlowSetup>(m, "FlowSetup")
      .def("__init__",
           [](FlowSetup* self, const std::string& cc, Us start_us, Us stop_us, Us forward_us, Us return_us,
              std::uint32_t mss_bytes, std::uint64_t total_bytes, double app_bytes_per_s, std::uint32_t target_us,
              std::uint32_t late_us, std::uint32_t jitter_us, std::uint32_t forward_jitter_us, double pkts_per_ack,
              double loss, std::uint64_t seed, std::uint32_t cap_pkts, bool stepped) {
             new (self) FlowSetup{{start_us, stop_us, forward_us, return_us, mss_bytes, total_bytes,
                                   app_bytes_per_s, target_us, late_us, jitter_us, forward_jitter_us, pkts_per_ack, loss, seed,
                                   cap_pkts, stepped},
                                  cc,
                                  {}};
           },
           "cc"_a, "start_us"_a, "stop_us"_a, "forward_us"_a, "return_us"_a, "mss_bytes"_a, "total_bytes"_a,
           "app_bytes_per_s"_a, "target_us"_a,
           "late_us"_a, "jitter_us"_a, "forward_jitter_us"_a, "pkts_per_ack"_a, "loss"_a, "seed"_a, "cap_pkts"_a, "stepped"_a);
  nb::class_<PathSetup>(m, "PathSetup")
      .def("__init__",
           [](PathSetup* self, Us start_us, const QueueConfig& queue, const std::vector<std::pair<Us, double>>& wired,
              std::uint32_t wired_buffer_bytes, Us late_us, double fair_window_ms, const std::vector<FlowSetup>& flows) {
             std::vector<RateStep> steps;
             for (const auto& [from_us, mbps] : wired) steps.push_back({from_us, mbps});
             new (self) PathSetup{start_us, queue, std::move(steps), wired_buffer_bytes, late_us, fair_window_ms, flows};
           },
           "start_us"_a, "queue"_a, "wired"_a, "wired_buffer_bytes"_a, "late_us"_a, "fair_window_ms"_a, "flows"_a);
  nb::class_<SimBatch>(m, "SimBatch")
      .def(nb::init<std::size_t, std::uint64_t, bool, int, const Matrix<const double>&, bool, Matrix<float>,
                    Vector<float>, Matrix<std::uint8_t>, Vector<float>, Vector<std::uint8_t>, std::size_t>())
      .def("set_link", &SimBatch::set_link)
      .def("set_normaliser", &SimBatch::set_normaliser)
      .def("reset", &SimBatch::reset)
      .def("step", &SimBatch::step)
      .def("step_caps", &SimBatch::step_caps)
      .def("clairvoyant_caps", &SimBatch::clairvoyant_caps)
      .def("packets", &SimBatch::packets)
      .def("memory_bytes", &SimBatch::memory_bytes)
      .def("log", &SimBatch::log);
}

}  // namespace reinet
