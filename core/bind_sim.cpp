// SPDX-License-Identifier: Apache-2.0
// A batch of simulated links for Python; core/sim.py holds the class that users see and owns the arrays written here.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "congestion_controls.hpp"
#include "sim.hpp"

namespace nb = nanobind;

namespace reinet {
namespace {

std::unique_ptr<Simulation> make_simulation(const std::string& cc, const LinkConfig& config,
                                            const reinet_period_config& period, LinkLog* log) {
  std::unique_ptr<Simulation> made;
  with_congestion_control(cc, [&]<class Control>() {
    made = std::make_unique<FlowSimulation<Control>>(config, period, log);
  });
  require(made != nullptr, "the simulator has no congestion control of that name");
  return made;
}

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
           Matrix<std::uint8_t> stats, Vector<float> rule_pkts, Vector<std::uint8_t> decided)
      : period_{min_period_ns, packet_timed ? 1U : 0U, 0},
        head_(static_cast<Head>(head)),
        normalise_(table_from(table)),
        record_log_(record_log),
        rows_(rows),
        states_(std::move(states)),
        rewards_(std::move(rewards)),
        stats_(std::move(stats)),
        rule_pkts_(std::move(rule_pkts)),
        decided_(std::move(decided)) {
    require_rows_of<reinet_flow_stats>(stats_);
    require(states_.shape(0) == rows && states_.shape(1) == kStateSize && rewards_.shape(0) == rows &&
                stats_.shape(0) == rows && rule_pkts_.shape(0) == rows && decided_.shape(0) == rows,
            "output arrays do not fit the batch");
  }
  SimBatch(const SimBatch&) = delete;
  SimBatch& operator=(const SimBatch&) = delete;

  void set_link(std::size_t row, Vector<const std::uint32_t> trace_ms, std::uint32_t buffer_bytes,
                std::uint64_t mrtt_us, std::uint32_t target_us, std::uint64_t start_offset_ms, std::uint32_t mss_bytes,
                std::uint32_t jitter_us, std::uint64_t seed, std::uint64_t flow_bytes, double app_bytes_per_s,
                const std::string& cc) {
    const std::uint32_t* end = trace_ms.data() + trace_ms.shape(0);
    require(trace_ms.shape(0) > 0 && end[-1] > 0, "a trace's last value must be above 0");
    require(std::is_sorted(trace_ms.data(), end), "a trace's values must not fall");
    Row& r = rows_.at(row);
    r.next_trace_ms = std::move(trace_ms);
    r.next_config = {{},        buffer_bytes, mrtt_us, target_us,  start_offset_ms,
                     mss_bytes, jitter_us,    seed,    flow_bytes, app_bytes_per_s};
    r.next_cc = cc;
  }

  void set_normaliser(const Matrix<const double>& table) { normalise_ = Normaliser(table_from(table)); }

  void reset(const Vector<const std::int32_t>& rows) {
    for (std::size_t i = 0; i < rows.shape(0); ++i) start(rows_.at(static_cast<std::size_t>(rows(i))));
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < rows.shape(0); ++i) run(static_cast<std::size_t>(rows(i)), 0);
  }

  void step(const Vector<const float>& actions) {
    require(actions.shape(0) == rows_.size(), "one action per link is needed");
    require_started();
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < rows_.size(); ++i)
      run(i, cap_from_action(head_, actions(i), record_at<reinet_flow_stats>(stats_, i).cwnd_pkts, rule_pkts_(i),
                             kMaxCapPkts));
  }

  void step_caps(const Vector<const std::uint32_t>& caps_pkts) {
    require(caps_pkts.shape(0) == rows_.size(), "one cap per link is needed");
    require_started();
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < rows_.size(); ++i) run(i, caps_pkts(i));
  }

  void clairvoyant_caps(std::uint64_t horizon_ms, const Vector<std::uint32_t>& caps_pkts) const {
    require_started();
    require(caps_pkts.shape(0) == rows_.size(), "one cap per link is needed");
    for (std::size_t i = 0; i < rows_.size(); ++i)
      caps_pkts(i) = rows_[i].simulation->clairvoyant_cap_pkts(horizon_ms);
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

  nb::dict log(std::size_t row) const {
    const Row& r = at(row);
    require(record_log_, "this batch keeps no log: make it with record_log=True");
    const std::uint64_t start_ms = r.simulation->start_ms(), end_ms = r.simulation->now_ms();
    std::vector<double> opportunity_ms;
    Schedule schedule({r.trace_ms.data(), r.trace_ms.shape(0)});
    for (schedule.seek_after(start_ms); schedule.next_ms() <= end_ms; schedule.advance())
      opportunity_ms.push_back(static_cast<double>(schedule.next_ms()));
    nb::dict d;
    d["arrival_ms"] = array_of(r.log->arrival_ms);
    d["arrival_bytes"] = array_of(r.log->arrival_bytes);
    d["opportunity_ms"] = array_of(opportunity_ms);
    d["departure_ms"] = array_of(r.log->departure_ms);
    d["departure_bytes"] = array_of(r.log->departure_bytes);
    d["departure_delay_ms"] = array_of(r.log->departure_delay_ms);
    d["drop_ms"] = array_of(r.log->drop_ms);
    d["drop_bytes"] = array_of(r.log->drop_bytes);
    d["start_ms"] = static_cast<double>(start_ms);
    d["end_ms"] = static_cast<double>(end_ms);
    return d;
  }

 private:
  struct Row {
    std::unique_ptr<Simulation> simulation;
    std::unique_ptr<LinkLog> log;
    FlowState state;
    Vector<const std::uint32_t> trace_ms;  // of the running simulation
    // Used from the next reset on.
    Vector<const std::uint32_t> next_trace_ms;
    LinkConfig next_config;
    std::string next_cc;
  };

  void start(Row& r) {
    r.simulation.reset();  // before the trace that it reads
    r.trace_ms = r.next_trace_ms;
    LinkConfig config = r.next_config;
    config.trace_ms = {r.trace_ms.data(), r.trace_ms.shape(0)};
    if (record_log_) r.log = std::make_unique<LinkLog>();
    r.simulation = make_simulation(r.next_cc, config, period_, r.log.get());
    r.state = FlowState{};
  }

  void run(std::size_t row, std::uint32_t cap_pkts) {
    Row& r = rows_[row];
    reinet_flow_stats record{};
    r.simulation->run_to_record(cap_pkts, record);
    record.cookie = row + 1;
    record.slot = static_cast<std::uint32_t>(row);
    put_record(stats_, row, record);
    decided_(row) = r.state.update(record, normalise_);
    std::memcpy(states_.data() + row * kStateSize, r.state.state(), kStateSize * sizeof(float));
    rewards_(row) = r.state.reward();
    rule_pkts_(row) = r.state.rule_pkts();
  }

  void require_started() const {
    for (const Row& r : rows_) require(r.simulation != nullptr, "reset() comes before step()");
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
  Matrix<float> states_;
  Vector<float> rewards_;
  Matrix<std::uint8_t> stats_;
  Vector<float> rule_pkts_;
  Vector<std::uint8_t> decided_;
};

}  // namespace

void bind_sim(nb::module_& m) {
  m.attr("OPPORTUNITY_BYTES") = kOpportunityBytes;
  nb::list names;
  for (const char* name : congestion_control_names()) names.append(name);
  m.attr("CONGESTION_CONTROLS") = nb::tuple(names);
  nb::class_<SimBatch>(m, "SimBatch")
      .def(nb::init<std::size_t, std::uint64_t, bool, int, const Matrix<const double>&, bool, Matrix<float>,
                    Vector<float>, Matrix<std::uint8_t>, Vector<float>, Vector<std::uint8_t>>())
      .def("set_link", &SimBatch::set_link)
      .def("set_normaliser", &SimBatch::set_normaliser)
      .def("reset", &SimBatch::reset)
      .def("step", &SimBatch::step)
      .def("step_caps", &SimBatch::step_caps)
      .def("clairvoyant_caps", &SimBatch::clairvoyant_caps)
      .def("packets", &SimBatch::packets)
      .def("log", &SimBatch::log);
}

}  // namespace reinet
