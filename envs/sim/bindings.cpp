// SPDX-License-Identifier: Apache-2.0
// The simulator for Python; envs/sim/batch.py holds the class that users see and owns the arrays that a batch writes.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/bindings.hpp"
#include "core/cc/congestion_controls.hpp"
#include "envs/sim/batch.hpp"

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

// A batch that holds on to the arrays it writes into, which are Python's.
class SimBatch {
 public:
  SimBatch(std::size_t rows, std::uint64_t min_period_ns, bool packet_timed, std::size_t set, int head, int reward,
           double delay_weight, const Matrix<const double>& table, bool record_log, Matrix<float> states,
           Vector<float> rewards, Matrix<std::uint8_t> stats, Vector<float> rule_pkts, Vector<std::uint8_t> decided,
           std::size_t threads)
      : states_(std::move(states)),
        rewards_(std::move(rewards)),
        stats_(std::move(stats)),
        rule_pkts_(std::move(rule_pkts)),
        decided_(std::move(decided)),
        batch_(rows, {min_period_ns, packet_timed ? 1U : 0U, 0},
               view_of(feature_set_at(set), head, reward, delay_weight, table), record_log,
               {states_.data(), rewards_.data(), stats_.data(), rule_pkts_.data(), decided_.data()}, threads) {
    require_rows_of<reinet_flow_stats>(stats_);
    require(states_.shape(0) == rows && states_.shape(1) == batch_.view().set.state_size() &&
                rewards_.shape(0) == rows && stats_.shape(0) == rows && rule_pkts_.shape(0) == rows &&
                decided_.shape(0) == rows,
            "output arrays do not fit the batch");
  }
  SimBatch(const SimBatch&) = delete;
  SimBatch& operator=(const SimBatch&) = delete;

  void set_link(std::size_t row, const PathSetup& setup, const std::vector<Vector<const std::uint32_t>>& traces_ms) {
    std::vector<SharedTrace> traces;
    for (const auto& trace_ms : traces_ms)
      traces.push_back({{trace_ms.data(), trace_ms.shape(0)}, std::make_shared<Vector<const std::uint32_t>>(trace_ms)});
    batch_.set_link(row, setup, std::move(traces));
  }

  void set_normaliser(const Matrix<const double>& table) {
    batch_.set_normaliser(table_from(batch_.view().set, table));
  }

  void reset(const Vector<const std::int32_t>& rows) {
    batch_.start(span_of(rows));  // lets go of traces, which are Python's
    nb::gil_scoped_release release;
    batch_.run(span_of(rows));
  }

  void step(const Vector<const float>& actions) {
    nb::gil_scoped_release release;
    batch_.step(span_of(actions));
  }

  void step_caps(const Vector<const std::uint32_t>& caps_pkts) {
    nb::gil_scoped_release release;
    batch_.step_caps(span_of(caps_pkts));
  }

  void clairvoyant_caps(std::uint64_t horizon_ms, const Vector<std::uint32_t>& caps_pkts) const {
    batch_.clairvoyant_caps(horizon_ms, span_of(caps_pkts));
  }

  nb::dict packets(std::size_t row) const {
    const PacketCounts counts = batch_.packets(row);
    nb::dict d;
    d["sent_pkts"] = counts.sent;
    d["dropped_pkts"] = counts.dropped;
    d["on_path_pkts"] = counts.on_path;
    d["queued_pkts"] = counts.queued;
    d["delivered_pkts"] = counts.delivered;
    return d;
  }

  std::size_t memory_bytes(std::size_t row) const { return batch_.memory_bytes(row); }

  nb::dict log(std::size_t row) const {
    const RowLog log = batch_.log(row);
    nb::dict d;
    d["arrival_ms"] = array_of(log.link.arrival_ms);
    d["arrival_bytes"] = array_of(log.link.arrival_bytes);
    d["arrival_flow"] = array_of(log.link.arrival_flow);
    d["opportunity_ms"] = array_of(log.opportunity_ms);
    d["departure_ms"] = array_of(log.link.departure_ms);
    d["departure_bytes"] = array_of(log.link.departure_bytes);
    d["departure_flow"] = array_of(log.link.departure_flow);
    d["departure_delay_ms"] = array_of(log.link.departure_delay_ms);
    d["drop_ms"] = array_of(log.link.drop_ms);
    d["drop_bytes"] = array_of(log.link.drop_bytes);
    d["drop_flow"] = array_of(log.link.drop_flow);
    d["start_ms"] = static_cast<double>(log.start_ms);
    d["end_ms"] = static_cast<double>(log.end_ms);
    return d;
  }

 private:
  static View view_of(const FeatureSet& set, int head, int reward, double delay_weight,
                      const Matrix<const double>& table) {
    return {set, state_config(set, table_from(set, table), static_cast<RewardKind>(reward), delay_weight),
            static_cast<Head>(head)};
  }

  Matrix<float> states_;
  Vector<float> rewards_;
  Matrix<std::uint8_t> stats_;
  Vector<float> rule_pkts_;
  Vector<std::uint8_t> decided_;
  Batch batch_;
};

}  // namespace

}  // namespace reinet

NB_MODULE(_sim, m) {
  using namespace reinet;
  const auto names = congestion_control_names();
  m.attr("CONGESTION_CONTROLS") = nb::tuple(nb::cast(std::vector<std::string>(names.begin(), names.end())));
  m.attr("NEVER_US") = kNever;
  m.def("opportunities_until", [](const Vector<const std::uint32_t>& trace_ms, std::uint64_t now_ms) {
    require(trace_ms.shape(0) > 0 && trace_ms(trace_ms.shape(0) - 1) > 0, "a trace's last value must be above 0");
    return opportunities_until(span_of(trace_ms), now_ms);
  });
  nb::enum_<QueueKind>(m, "QueueKind")
      .value("droptail", QueueKind::kDropTail)
      .value("drophead", QueueKind::kDropHead)
      .value("codel", QueueKind::kCoDel)
      .value("pie", QueueKind::kPie);
  nb::class_<QueueConfig>(m, "QueueConfig")
      .def(nb::init<QueueKind, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t>(), "kind"_a,
           "limit_bytes"_a, "limit_pkts"_a, "target_ms"_a, "interval_ms"_a, "seed"_a);
  nb::class_<FlowSetup>(m, "FlowSetup")
      .def(
          "__init__",
          [](FlowSetup* self, const std::string& cc, Us start_us, Us stop_us, Us forward_us, Us return_us,
             std::uint32_t mss_bytes, std::uint64_t total_bytes, double app_bytes_per_s, std::uint32_t target_us,
             std::uint32_t late_us, std::uint32_t jitter_us, std::uint32_t forward_jitter_us, double pkts_per_ack,
             double loss, std::uint64_t seed, std::uint32_t cap_pkts, bool stepped) {
            new (self)
                FlowSetup{{start_us, stop_us, forward_us, return_us, mss_bytes, total_bytes, app_bytes_per_s, target_us,
                           late_us, jitter_us, forward_jitter_us, pkts_per_ack, loss, seed, cap_pkts, stepped},
                          cc,
                          {}};
          },
          "cc"_a, "start_us"_a, "stop_us"_a, "forward_us"_a, "return_us"_a, "mss_bytes"_a, "total_bytes"_a,
          "app_bytes_per_s"_a, "target_us"_a, "late_us"_a, "jitter_us"_a, "forward_jitter_us"_a, "pkts_per_ack"_a,
          "loss"_a, "seed"_a, "cap_pkts"_a, "stepped"_a);
  nb::class_<PathSetup>(m, "PathSetup")
      .def(
          "__init__",
          [](PathSetup* self, Us start_us, const QueueConfig& queue, const std::vector<std::pair<Us, double>>& wired,
             std::uint32_t wired_buffer_bytes, Us late_us, double fair_window_ms, const std::vector<FlowSetup>& flows) {
            std::vector<RateStep> steps;
            for (const auto& [from_us, mbps] : wired) steps.push_back({from_us, mbps});
            new (self) PathSetup{start_us, queue, std::move(steps), wired_buffer_bytes, late_us, fair_window_ms, flows};
          },
          "start_us"_a, "queue"_a, "wired"_a, "wired_buffer_bytes"_a, "late_us"_a, "fair_window_ms"_a, "flows"_a);
  nb::class_<SimBatch>(m, "SimBatch")
      .def(nb::init<std::size_t, std::uint64_t, bool, std::size_t, int, int, double, const Matrix<const double>&, bool,
                    Matrix<float>, Vector<float>, Matrix<std::uint8_t>, Vector<float>, Vector<std::uint8_t>,
                    std::size_t>(),
           "rows"_a, "min_period_ns"_a, "packet_timed"_a, "feature_set"_a, "head"_a, "reward"_a, "delay_weight"_a,
           "table"_a, "record_log"_a, "states"_a, "rewards"_a, "stats"_a, "rule_pkts"_a, "decided"_a, "threads"_a)
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
