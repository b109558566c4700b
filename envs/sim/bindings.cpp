// SPDX-License-Identifier: Apache-2.0
// The simulator for Python; envs/sim/batch.py holds the class that users see and owns the arrays that a batch writes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <stdexcept>
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

SharedTrace shared(const Vector<const std::uint32_t>& trace_ms) {
  return {{trace_ms.data(), trace_ms.shape(0)}, std::make_shared<Vector<const std::uint32_t>>(trace_ms)};
}

// A batch that holds on to the arrays it writes into, which are Python's. One call at a time: reset() and the steps let
// other Python threads run.
class SimBatch {
 public:
  SimBatch(std::size_t rows, std::uint64_t min_period_ns, bool packet_timed, std::size_t set, int head, int reward,
           double delay_weight, double room_beyond_us, const Matrix<const double>& table, bool record_log,
           Matrix<float> states, Vector<float> rewards, Matrix<std::uint8_t> stats, Vector<float> rule_pkts,
           Vector<std::uint8_t> decided, Vector<std::uint8_t> may_cap, std::size_t threads)
      : states_(std::move(states)),
        rewards_(std::move(rewards)),
        stats_(std::move(stats)),
        rule_pkts_(std::move(rule_pkts)),
        decided_(std::move(decided)),
        may_cap_(std::move(may_cap)),
        batch_(rows, {min_period_ns, packet_timed ? 1U : 0U, 0},
               view_of(feature_set_at(set), head, reward, delay_weight, room_beyond_us, table), record_log,
               {states_.data(), rewards_.data(), stats_.data(), rule_pkts_.data(), decided_.data(), may_cap_.data()},
               threads) {
    require_rows_of<reinet_flow_stats>(stats_);
    require(states_.shape(0) == rows && states_.shape(1) == batch_.view().set.state_size() &&
                rewards_.shape(0) == rows && stats_.shape(0) == rows && rule_pkts_.shape(0) == rows &&
                decided_.shape(0) == rows && may_cap_.shape(0) == rows,
            "output arrays do not fit the batch");
  }
  SimBatch(const SimBatch&) = delete;
  SimBatch& operator=(const SimBatch&) = delete;

  void set_link(std::size_t row, const LinkOptions& link, const std::vector<Vector<const std::uint32_t>>& traces_ms,
                const Vector<const std::uint32_t>& uplink_ms) {
    const Turn turn(*this);
    PathTraces traces{{}, shared(uplink_ms)};
    for (const auto& trace_ms : traces_ms) traces.links.push_back(shared(trace_ms));
    batch_.set_link(row, link, std::move(traces));
  }

  void reset(const Vector<const std::int32_t>& rows) {
    const Turn turn(*this);
    batch_.start(span_of(rows));  // lets go of traces, which are Python's
    nb::gil_scoped_release release;
    batch_.run(span_of(rows));
  }

  void step(const Vector<const float>& actions) {
    const Turn turn(*this);
    nb::gil_scoped_release release;
    batch_.step(span_of(actions));
  }

  void step_caps(const Vector<const std::uint32_t>& caps_pkts) {
    const Turn turn(*this);
    nb::gil_scoped_release release;
    batch_.step_caps(span_of(caps_pkts));
  }

  void clairvoyant_caps(const Vector<const std::uint64_t>& horizons_ms, const Vector<std::uint32_t>& caps_pkts) const {
    const Turn turn(*this);
    batch_.clairvoyant_caps(span_of(horizons_ms), span_of(caps_pkts));
  }

  void hidden(const Vector<const std::uint64_t>& horizons_ms, const Matrix<float>& values) const {
    const Turn turn(*this);
    require(values.shape(0) == batch_.size() && values.shape(1) == horizons_ms.shape(0) + 2,
            "a row of queue and horizons is needed for each link");
    batch_.hidden(span_of(horizons_ms), values.data());
  }

  nb::dict packets(std::size_t row) const {
    const Turn turn(*this);
    const PacketCounts counts = batch_.packets(row);
    nb::dict d;
    d["sent_pkts"] = counts.sent;
    d["dropped_pkts"] = counts.dropped;
    d["on_path_pkts"] = counts.on_path;
    d["queued_pkts"] = counts.queued;
    d["delivered_pkts"] = counts.delivered;
    return d;
  }

  // Of the flow's objects: when each was written and when it had arrived, in us of trace time.
  nb::tuple objects(std::size_t row, std::uint32_t flow) const {
    const Turn turn(*this);
    std::vector<std::uint64_t> written_us, received_us;
    for (const ObjectTimes& object : batch_.objects(row, flow)) {
      written_us.push_back(object.written_us);
      received_us.push_back(object.received_us);
    }
    return nb::make_tuple(array_of(written_us), array_of(received_us));
  }

  std::size_t memory_bytes(std::size_t row) const {
    const Turn turn(*this);
    return batch_.memory_bytes(row);
  }

  nb::dict log(std::size_t row, std::uint64_t until_ms) const {
    const Turn turn(*this);
    const RowLog log = batch_.log(row, until_ms);
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
  // A call's use of the batch. Throws std::runtime_error while another call goes on, and in a child without threads.
  class Turn {
   public:
    explicit Turn(const SimBatch& batch) : in_use_(batch.in_use_) {
      if (batch.batch_.lost_threads())
        throw std::runtime_error(
            "SimBatch: this process was forked from the one that made the batch, and the batch's threads are not here; "
            "make a batch in the child, or one with threads=1 before the fork");
      if (in_use_.exchange(true, std::memory_order_acquire))
        throw std::runtime_error(
            "SimBatch: another thread uses this batch, or did when this process was forked from its; "
            "give each thread and process a batch of its own, or guard this one with a lock");
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { in_use_.store(false, std::memory_order_release); }

   private:
    std::atomic<bool>& in_use_;
  };

  static View view_of(const FeatureSet& set, int head, int reward, double delay_weight, double room_beyond_us,
                      const Matrix<const double>& table) {
    return {set,
            state_config(set, table_from(set, table), static_cast<RewardKind>(reward), delay_weight, room_beyond_us),
            static_cast<Head>(head)};
  }

  Matrix<float> states_;
  Vector<float> rewards_;
  Matrix<std::uint8_t> stats_;
  Vector<float> rule_pkts_;
  Vector<std::uint8_t> decided_, may_cap_;
  mutable std::atomic<bool> in_use_ = false;
  Batch batch_;
};

}  // namespace

}  // namespace reinet

NB_MODULE(_sim, m) {
  using namespace reinet;
  const auto names = congestion_control_names();
  m.attr("CONGESTION_CONTROLS") = nb::tuple(nb::cast(std::vector<std::string>(names.begin(), names.end())));
  std::vector<std::string> queues;
  for (const auto& queue : kQueues) queues.emplace_back(queue.first);
  m.attr("QUEUES") = nb::tuple(nb::cast(queues));
  nb::exception<Stalled>(m, "StalledError", nb::module_::import_("reinet.core.errors").attr("ConfigError"));
  m.attr("SCHEDULERS") = nb::tuple(nb::cast(std::vector<std::string>(kSchedulers.begin(), kSchedulers.end())));

  // OPTION(type, name) of the list in options.hpp: an attribute, and its name among NAMES.
  nb::class_<FlowOptions> flow(m, "FlowOptions");
  nb::class_<LinkOptions> link(m, "LinkOptions");
  std::vector<std::string> flow_names, link_names;
#define REINET_FLOW_ATTRIBUTE(type, name) flow.def_rw(#name, &FlowOptions::name), flow_names.emplace_back(#name);
#define REINET_LINK_ATTRIBUTE(type, name) link.def_rw(#name, &LinkOptions::name), link_names.emplace_back(#name);
  REINET_FLOW_OPTIONS(REINET_FLOW_ATTRIBUTE)
  REINET_LINK_OPTIONS(REINET_LINK_ATTRIBUTE)
#undef REINET_FLOW_ATTRIBUTE
#undef REINET_LINK_ATTRIBUTE
  flow.def(nb::init<>()).attr("NAMES") = nb::tuple(nb::cast(flow_names));
  link.def(nb::init<>()).def_rw("flows", &LinkOptions::flows).attr("NAMES") = nb::tuple(nb::cast(link_names));

  nb::class_<SimBatch>(m, "SimBatch")
      .def(nb::init<std::size_t, std::uint64_t, bool, std::size_t, int, int, double, double,
                    const Matrix<const double>&, bool, Matrix<float>, Vector<float>, Matrix<std::uint8_t>,
                    Vector<float>, Vector<std::uint8_t>, Vector<std::uint8_t>, std::size_t>(),
           "rows"_a, "min_period_ns"_a, "packet_timed"_a, "feature_set"_a, "head"_a, "reward"_a, "delay_weight"_a,
           "room_beyond_us"_a, "table"_a, "record_log"_a, "states"_a, "rewards"_a, "stats"_a, "rule_pkts"_a,
           "decided"_a, "may_cap"_a, "threads"_a)
      .def("set_link", &SimBatch::set_link)
      .def("reset", &SimBatch::reset)
      .def("step", &SimBatch::step)
      .def("step_caps", &SimBatch::step_caps)
      .def("clairvoyant_caps", &SimBatch::clairvoyant_caps)
      .def("hidden", &SimBatch::hidden)
      .def("packets", &SimBatch::packets)
      .def("objects", &SimBatch::objects)
      .def("memory_bytes", &SimBatch::memory_bytes)
      .def("log", &SimBatch::log);
}
