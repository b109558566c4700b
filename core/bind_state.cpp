// SPDX-License-Identifier: Apache-2.0
// Python's view of period.h and state.hpp. Thin: the classes users see are in core/period.py and core/state.py.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/bindings.hpp"
#include "core/period.h"

namespace nb = nanobind;

namespace reinet {
namespace {

class PeriodTracker {
 public:
  PeriodTracker(std::uint64_t min_period_ns, bool packet_timed) : config_{min_period_ns, packet_timed ? 1U : 0U, 0} {}

  // Writes the records that the ACKs cause into out, which has room for one per ACK; returns their number.
  std::size_t on_acks(const Matrix<const std::uint8_t>& acks, const Matrix<std::uint8_t>& out) {
    require_rows_of<reinet_ack>(acks);
    require_rows_of<reinet_flow_stats>(out);
    require(out.shape(0) >= acks.shape(0), "out has fewer rows than acks");
    std::size_t records = 0;
    for (std::size_t i = 0; i < acks.shape(0); ++i) {
      const auto ack = record_at<reinet_ack>(acks, i);
      reinet_flow_stats record{};
      if (reinet_period_on_ack(&period_, &config_, &ack, &record)) put_record(out, records++, record);
    }
    return records;
  }

  std::size_t on_tick(std::uint64_t now_ns, bool outstanding, const Matrix<std::uint8_t>& out) {
    require_rows_of<reinet_flow_stats>(out);
    require(out.shape(0) >= 1, "out has no row");
    reinet_flow_stats record{};
    if (!reinet_period_on_tick(&period_, now_ns, outstanding, &record)) return 0;
    put_record(out, 0, record);
    return 1;
  }

  void on_restart(std::uint64_t now_ns) { reinet_period_on_restart(&period_, now_ns); }

 private:
  reinet_period_config config_;
  reinet_period period_{};
};

class StateBank {
 public:
  StateBank(std::size_t capacity, const NormaliserTable& table) : normalise_(table), flows_(capacity) {}

  std::size_t capacity() const { return flows_.size(); }
  void grow(std::size_t capacity) {
    require(capacity >= flows_.size(), "a state bank does not shrink: rows in use would vanish");
    flows_.resize(capacity);
  }
  void set_normaliser(const NormaliserTable& table) { normalise_ = Normaliser(table); }

  void reset(const Vector<const std::int32_t>& rows) {
    for (std::size_t i = 0; i < rows.shape(0); ++i) at(rows(i)) = FlowState{};
  }

  void update(const Vector<const std::int32_t>& rows, const Matrix<const std::uint8_t>& stats,
              const Matrix<float>& states, const Vector<float>& rewards, const Vector<float>& rule_pkts,
              const Vector<std::uint8_t>& decided) {
    require_rows_of<reinet_flow_stats>(stats);
    const std::size_t n = rows.shape(0);
    require(stats.shape(0) == n && states.shape(0) == n && states.shape(1) == kStateSize && rewards.shape(0) == n &&
                rule_pkts.shape(0) == n && decided.shape(0) == n,
            "rows, stats and outputs differ in length");
    for (std::size_t i = 0; i < n; ++i) at(rows(i));  // refuse a bad row before anything changes
    for (std::size_t i = 0; i < n; ++i) {
      FlowState& flow = at(rows(i));
      decided(i) = flow.update(record_at<reinet_flow_stats>(stats, i), normalise_);
      std::memcpy(states.data() + i * kStateSize, flow.state(), kStateSize * sizeof(float));
      rewards(i) = flow.reward();
      rule_pkts(i) = flow.rule_pkts();
    }
  }

 private:
  FlowState& at(std::int32_t row) {
    if (row < 0 || static_cast<std::size_t>(row) >= flows_.size())
      throw std::out_of_range("row " + std::to_string(row) + " is outside a state bank of " +
                              std::to_string(flows_.size()) + " rows");
    return flows_[static_cast<std::size_t>(row)];
  }

  Normaliser normalise_;
  std::vector<FlowState> flows_;
};

void caps_from_actions(int head, const Vector<const float>& actions, const Vector<const std::uint32_t>& cwnd_pkts,
                       const Vector<const float>& rule_pkts, std::uint32_t ceiling_pkts,
                       const Vector<std::uint32_t>& caps_pkts) {
  const std::size_t n = actions.shape(0);
  require(cwnd_pkts.shape(0) == n && rule_pkts.shape(0) == n && caps_pkts.shape(0) == n,
          "actions, cwnd_pkts and rule_pkts differ in length");
  for (std::size_t i = 0; i < n; ++i)
    caps_pkts(i) = cap_from_action(static_cast<Head>(head), actions(i), cwnd_pkts(i), rule_pkts(i), ceiling_pkts);
}

}  // namespace

void bind_state(nb::module_& m) {
  m.attr("INPUT_NAMES") = nb::cast(std::vector<std::string>(kInputNames.begin(), kInputNames.end()));
  m.attr("HEAD_NAMES") = nb::cast(std::vector<std::string>(kHeadNames.begin(), kHeadNames.end()));
  std::vector<std::tuple<std::string, std::string, float, float>> features;
  for (const Feature& f : kFeatures) features.emplace_back(f.name, f.unit, f.low, f.high);
  m.attr("FEATURES") = nb::cast(features);
  m.attr("FEATURE_SET_NAME") = kFeatureSetName;
  m.attr("FEATURE_SET_VERSION") = kFeatureSetVersion;
  m.attr("HISTORY") = kHistory;
  m.attr("REFERENCE_MIN_RTT_MS") = kReferenceMinRttMs;
  m.attr("RULE_GAIN") = kRuleGain;
  m.attr("RULE_PERIODS") = kRulePeriods;
  m.attr("MIN_CAP_PKTS") = kMinCapPkts;
  m.attr("MAX_CAP_PKTS") = kMaxCapPkts;
  m.attr("MIN_PERIOD_NS") = REINET_MIN_PERIOD_NS;
  m.attr("SILENCE_NS") = REINET_SILENCE_NS;

  m.def("observe", [](const Matrix<double>& table, const Matrix<const std::uint8_t>& stats) {
    require_rows_of<reinet_flow_stats>(stats);
    NormaliserTable t = table_from(Matrix<const double>(table));
    for (std::size_t i = 0; i < stats.shape(0); ++i) observe(t, record_at<reinet_flow_stats>(stats, i));
    table_to(t, table);
  });
  m.def("merge", [](const Matrix<double>& table, const Matrix<const double>& other) {
    NormaliserTable t = table_from(Matrix<const double>(table));
    const NormaliserTable o = table_from(other);
    for (std::size_t i = 0; i < kInputs; ++i) t[i].merge(o[i]);
    table_to(t, table);
  });
  m.def("caps_from_actions", &caps_from_actions);

  nb::class_<PeriodTracker>(m, "PeriodTracker")
      .def(nb::init<std::uint64_t, bool>())
      .def("on_acks", &PeriodTracker::on_acks)
      .def("on_tick", &PeriodTracker::on_tick)
      .def("on_restart", &PeriodTracker::on_restart);

  nb::class_<StateBank>(m, "StateBank")
      .def("__init__", [](StateBank* self, std::size_t capacity,
                          const Matrix<const double>& table) { new (self) StateBank(capacity, table_from(table)); })
      .def_prop_ro("capacity", &StateBank::capacity)
      .def("grow", &StateBank::grow)
      .def("set_normaliser",
           [](StateBank& self, const Matrix<const double>& table) { self.set_normaliser(table_from(table)); })
      .def("reset", &StateBank::reset)
      .def("update", &StateBank::update);
}

}  // namespace reinet
