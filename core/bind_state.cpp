// SPDX-License-Identifier: Apache-2.0
// Python's view of periods, feature sets, rewards, states, heads, guards and what is remembered of flows; the classes
// users see are in the modules around it.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "core/bindings.hpp"
#include "core/guard/guard.hpp"
#include "core/peers/peer.h"
#include "core/peers/peers.hpp"
#include "core/period.h"
#include "core/states/calm.hpp"
#include "core/states/flow_memory.hpp"
#include "core/states/heads.hpp"
#include "core/states/reflex.hpp"
#include "core/states/state_bank.hpp"

namespace nb = nanobind;

namespace reinet {
namespace {

template <typename BySlot>
void forget(BySlot& self, const Vector<const std::int64_t>& slots, const Vector<const std::uint64_t>& cookies) {
  require(slots.shape(0) == cookies.shape(0), "slots and cookies differ in length");
  for (std::size_t i = 0; i < slots.shape(0); ++i) self.forget(static_cast<std::size_t>(slots(i)), cookies(i));
}

nb::dict dict_of(const FeatureSet& set) {
  nb::list features, inputs;
  for (const Feature& f : set.features) features.append(nb::make_tuple(f.name, f.unit, f.low, f.high, f.formula));
  for (const Input& i : set.inputs) inputs.append(nb::make_tuple(i.name, i.formula));
  nb::dict d;
  d["name"] = set.name;
  d["version"] = set.version;
  d["history"] = set.history;
  d["features"] = features;
  d["inputs"] = inputs;
  d["terms"] = set.terms;
  d["rule"] = set.rule;
  return d;
}

void bind_periods(nb::module_& m) {
  m.attr("MIN_PERIOD_NS") = REINET_MIN_PERIOD_NS;
  m.attr("SILENCE_NS") = REINET_SILENCE_NS;
}

void bind_features(nb::module_& m) {
  nb::list sets;
  for (const FeatureSet& set : kFeatureSets) sets.append(dict_of(set));
  m.attr("FEATURE_SETS") = sets;
  m.attr("NORMALISED_FORMULA") = kNormalisedFormula;
  m.def("typical_table", [](std::size_t set, const Matrix<double>& table) {
    require_table_of(feature_set_at(set), table);
    table_to(typical_table(feature_set_at(set).inputs), table);
  });
  m.def("observe", [](std::size_t set, const Matrix<double>& table, const Matrix<const std::uint8_t>& stats) {
    require_rows_of<reinet_flow_stats>(stats);
    NormaliserTable t = table_from(feature_set_at(set), table);
    for (std::size_t i = 0; i < stats.shape(0); ++i)
      feature_set_at(set).observe(t, record_at<reinet_flow_stats>(stats, i));
    table_to(t, table);
  });
  m.def("merge", [](std::size_t set, const Matrix<double>& table, const Matrix<const double>& other) {
    NormaliserTable t = table_from(feature_set_at(set), table);
    const NormaliserTable o = table_from(feature_set_at(set), other);
    for (std::size_t i = 0; i < t.size(); ++i) t[i].merge(o[i]);
    table_to(t, table);
  });
}

void bind_rewards(nb::module_& m) {
  m.attr("REWARD_NAMES") = nb::cast(std::vector<std::string>(kRewardNames.begin(), kRewardNames.end()));
  m.attr("DELAY_WEIGHT") = kDelayWeight;
  m.attr("LEAST_TARGET_PER_RTT") = kLeastTargetPerRtt;
  m.def("regret_unit_bytes", &regret_unit_bytes);
  m.def("delay_ratios", [](const Matrix<const std::uint8_t>& stats, const Vector<double>& ratios) {
    require_rows_of<reinet_flow_stats>(stats);
    require(ratios.shape(0) == stats.shape(0), "stats and ratios differ in length");
    for (std::size_t i = 0; i < stats.shape(0); ++i) ratios(i) = delay_ratio(record_at<reinet_flow_stats>(stats, i));
  });
  m.def("delay_rooms_us", [](const Matrix<const std::uint8_t>& stats, const Vector<double>& rooms_us) {
    require_rows_of<reinet_flow_stats>(stats);
    require(rooms_us.shape(0) == stats.shape(0), "stats and rooms_us differ in length");
    for (std::size_t i = 0; i < stats.shape(0); ++i)
      rooms_us(i) = delay_room_us(record_at<reinet_flow_stats>(stats, i));
  });
}

void bind_heads(nb::module_& m) {
  m.attr("HEAD_NAMES") = nb::cast(std::vector<std::string>(kHeadNames.begin(), kHeadNames.end()));
  m.attr("RULE_GAIN") = kRuleGain;
  m.attr("WIDE_GAIN") = kWideGain;
  m.attr("MIN_CAP_PKTS") = kMinCapPkts;
  m.attr("MAX_CAP_PKTS") = kMaxCapPkts;
  m.def("round_caps",
        [](const Vector<const double>& pkts, std::uint32_t ceiling_pkts, const Vector<std::uint32_t>& caps_pkts) {
          require(caps_pkts.shape(0) == pkts.shape(0), "pkts and caps_pkts differ in length");
          for (std::size_t i = 0; i < pkts.shape(0); ++i) caps_pkts(i) = round_cap_pkts(pkts(i), ceiling_pkts);
        });
  m.def("caps_from_actions", [](int head, const Vector<const float>& actions,
                                const Vector<const std::uint32_t>& cwnd_pkts, const Vector<const float>& rule_pkts,
                                std::uint32_t ceiling_pkts, const Vector<std::uint32_t>& caps_pkts) {
    const std::size_t n = actions.shape(0);
    require(cwnd_pkts.shape(0) == n && rule_pkts.shape(0) == n && caps_pkts.shape(0) == n,
            "actions, cwnd_pkts and rule_pkts differ in length");
    for (std::size_t i = 0; i < n; ++i)
      caps_pkts(i) = cap_from_action(static_cast<Head>(head), actions(i), cwnd_pkts(i), rule_pkts(i), ceiling_pkts);
  });
  m.attr("MOST_CALM_RTTS") = kMostCalmRtts;
  m.def("calm_caps", [](const Vector<const std::uint32_t>& wanted_pkts, const Matrix<const std::uint8_t>& stats,
                        double calm_rtts, std::uint32_t ceiling_pkts, const Vector<std::uint32_t>& caps_pkts) {
    require_rows_of<reinet_flow_stats>(stats);
    const std::size_t n = wanted_pkts.shape(0);
    require(stats.shape(0) == n && caps_pkts.shape(0) == n, "caps and stats differ in length");
    for (std::size_t i = 0; i < n; ++i)
      caps_pkts(i) = calm_cap_pkts(wanted_pkts(i), record_at<reinet_flow_stats>(stats, i), calm_rtts, ceiling_pkts);
  });
  m.def("learned_caps", [](int head, const Vector<const float>& actions, const Matrix<const std::uint8_t>& stats,
                           const Vector<const float>& rule_pkts, double calm_rtts, std::uint32_t ceiling_pkts,
                           const Vector<std::uint32_t>& caps_pkts) {
    require_rows_of<reinet_flow_stats>(stats);
    const std::size_t n = actions.shape(0);
    require(stats.shape(0) == n && rule_pkts.shape(0) == n && caps_pkts.shape(0) == n,
            "actions, stats and rule_pkts differ in length");
    for (std::size_t i = 0; i < n; ++i)
      caps_pkts(i) = learned_cap_pkts(static_cast<Head>(head), actions(i), record_at<reinet_flow_stats>(stats, i),
                                      rule_pkts(i), calm_rtts, ceiling_pkts);
  });
  m.def("actions_from_caps",
        [](int head, const Vector<const std::uint32_t>& caps_pkts, const Vector<const std::uint32_t>& cwnd_pkts,
           const Vector<const float>& rule_pkts, const Vector<float>& actions) {
          const std::size_t n = actions.shape(0);
          require(cwnd_pkts.shape(0) == n && rule_pkts.shape(0) == n && caps_pkts.shape(0) == n,
                  "caps_pkts, cwnd_pkts and rule_pkts differ in length");
          for (std::size_t i = 0; i < n; ++i)
            actions(i) = action_from_cap(static_cast<Head>(head), caps_pkts(i), cwnd_pkts(i), rule_pkts(i));
        });
}

void require_rows_below(const Vector<const std::int64_t>& rows, std::size_t size) {
  for (std::size_t i = 0; i < rows.shape(0); ++i)
    require(rows(i) >= 0 && static_cast<std::size_t>(rows(i)) < size, "a row lies outside the table");
}

void bind_guard(nb::module_& m) {
  m.attr("FOREIGN_ROUNDS") = kForeignRounds;
  m.attr("ASK_ROUNDS") = kAskRounds;
  m.attr("LEAST_YIELD_NS") = kLeastYieldNs;
  m.attr("LOOK_AFTER_NS") = kLookAfterNs;
  m.attr("LOOK_EVERY_NS") = kLookEveryNs;
  m.attr("LOOK_REST_NS") = kLookRestNs;
  m.attr("LOOK_STEP_ROUNDS") = kStepRounds;
  m.attr("LOOK_LONGEST_ROUND_NS") = kLongestRoundNs;
  m.attr("HOLD_PER_PATH") = kHoldPerPath;
  m.attr("INVALID_CAP_PKTS") = kInvalidCapPkts;
  m.attr("PEER_EVERYBODY") = REINET_PEER_EVERYBODY;
  m.attr("PEER_OF_PROGRAM") = REINET_PEER_OF_PROGRAM;
  m.attr("PEER_NAMED_BY") = REINET_PEER_NAMED_BY;
  m.def("peer_of", [](const nb::bytes& address) {
    require(address.size() == 4 || address.size() == 16, "an address has 4 or 16 bytes");
    std::array<std::uint32_t, 4> words{};
    std::memcpy(words.data(), address.data(), address.size());
    return address.size() == 4 ? reinet_peer_of_v4(words[0]) : reinet_peer_of_v6(words.data());
  });
  nb::class_<Peers>(m, "Peers")
      .def(nb::init<bool>(), nb::arg("shared_uplink"))
      .def("annotate",
           [](Peers& self, const Matrix<std::uint8_t>& stats) {
             require_rows_of<reinet_flow_stats>(stats);
             for (std::size_t i = 0; i < stats.shape(0); ++i) {
               auto record = record_at<reinet_flow_stats>(stats, i);
               self.annotate(record);
               put_record(stats, i, record);
             }
           })
      .def("forget", &forget<Peers>);
  nb::class_<GuardBank>(m, "GuardBank")
      .def("__init__", [](GuardBank* self, std::uint32_t ceiling_pkts,
                          bool bounds_steps) { new (self) GuardBank({ceiling_pkts, bounds_steps, true, false}); })
      .def("forget", &forget<GuardBank>)
      .def("see",
           [](GuardBank& self, const Matrix<const std::uint8_t>& stats, bool aims_at_target) {
             require_rows_of<reinet_flow_stats>(stats);
             for (std::size_t i = 0; i < stats.shape(0); ++i)
               self.see(record_at<reinet_flow_stats>(stats, i), aims_at_target);
           })
      .def("judge", [](GuardBank& self, const Matrix<const std::uint8_t>& stats,
                       const Vector<const std::uint32_t>& wanted_pkts, const Vector<const std::uint8_t>& may_cap,
                       bool aims_at_target, const Vector<std::uint32_t>& caps_pkts,
                       const Matrix<std::uint8_t>& verdicts) {
        require_rows_of<reinet_flow_stats>(stats);
        require_rows_of<Verdict>(verdicts);
        const std::size_t n = stats.shape(0);
        require(wanted_pkts.shape(0) == n && may_cap.shape(0) == n && caps_pkts.shape(0) == n && verdicts.shape(0) == n,
                "stats, caps and verdicts differ in length");
        for (std::size_t i = 0; i < n; ++i) {
          const Verdict verdict =
              self.judge(record_at<reinet_flow_stats>(stats, i), wanted_pkts(i), may_cap(i), aims_at_target);
          caps_pkts(i) = verdict.allowed_pkts;
          put_record(verdicts, i, verdict);
        }
      });
}

void bind_reflex(nb::module_& m) {
  m.attr("VERDICT_BYTES") = sizeof(Verdict);
  m.attr("ANSWER_NONE") = static_cast<int>(Answer::none);
  m.attr("ANSWER_DECIDED") = static_cast<int>(Answer::decided);
  m.attr("ANSWER_CLOSED") = static_cast<int>(Answer::closed);
  m.attr("ANSWER_STALE") = static_cast<int>(Answer::stale);
  nb::class_<Reflex>(m, "Reflex")
      .def(
          "__init__",
          [](Reflex* self, StateBank& bank, GuardBank& guards, const std::vector<Matrix<const float>>& weights,
             const std::vector<Vector<const float>>& biases, int head, double calm_rtts, std::uint32_t ceiling_pkts,
             std::uint64_t lease_ns) {
            require(weights.size() == biases.size() && !weights.empty(), "a layer has a weight and a bias");
            std::vector<Network::Layer> layers;
            for (std::size_t i = 0; i < weights.size(); ++i) {
              Network::Layer layer{weights[i].shape(0), weights[i].shape(1), {}, {}};
              require(biases[i].shape(0) == layer.outputs && layer.outputs <= kMostUnits &&
                          (i == 0 || layer.inputs == layers.back().outputs),
                      "the layers do not fit each other");
              layer.weights.assign(weights[i].data(), weights[i].data() + layer.inputs * layer.outputs);
              layer.bias.assign(biases[i].data(), biases[i].data() + layer.outputs);
              layers.push_back(std::move(layer));
            }
            require(layers.back().outputs == 1, "the last layer gives one number");
            new (self) Reflex(bank, guards, Network(std::move(layers)),
                              {static_cast<Head>(head), calm_rtts, ceiling_pkts, lease_ns});
          },
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("set_target", [](Reflex& self, double min_rtts, double extra_us) { self.set_target({min_rtts, extra_us}); })
      .def(
          "begin",
          [](Reflex& self, const Vector<const std::uint64_t>& owners, Peers& peers) {
            self.begin({owners.data(), owners.data() + owners.shape(0)}, peers);
          },
          nb::keep_alive<1, 3>())
      .def("answer",
           [](Reflex& self, const Matrix<std::uint8_t>& stats, std::uint64_t now_ns,
              const Matrix<std::uint8_t>& verdicts, const Vector<std::uint8_t>& answers) {
             require_rows_of<reinet_flow_stats>(stats);
             require_rows_of<Verdict>(verdicts);
             const std::size_t n = stats.shape(0);
             require(verdicts.shape(0) == n && answers.shape(0) == n, "stats, verdicts and answers differ in length");
             for (std::size_t i = 0; i < n; ++i) {
               auto record = record_at<reinet_flow_stats>(stats, i);
               Verdict verdict{};
               const bool is_over = record.flags & REINET_FLAG_CLOSED;
               if (is_over) self.forget(record.slot, record.cookie);
               answers(i) = static_cast<std::uint8_t>(is_over ? Answer::none : self.answer(record, now_ns, verdict));
               put_record(stats, i, record);
               put_record(verdicts, i, verdict);
             }
           })
      .def("show", [](Reflex& self, std::size_t slot, const Vector<float>& state) {
        require(state.shape(0) == self.state_size(), "no room for the state");
        return self.show(slot, state.data());
      });
  nb::class_<Rest>(m, "Rest")
      .def(nb::init<>())
      .def(
          "after",
          [](Rest& self, std::uint64_t came_ns, std::size_t records, std::uint64_t most_ns) {
            require(records > 0, "a rest is after records");
            return self.after(came_ns, records, most_ns);
          },
          nb::arg("came_ns"), nb::arg("records"), nb::arg("most_ns"));
}

nb::tuple counted(const Histogram& histogram) {
  return nb::make_tuple(nb::cast(histogram.counts()), histogram.total());
}

void bind_memory(nb::module_& m) {
  m.attr("KEPT_RECORDS") = FlowMemory::kKept;
  nb::class_<FlowMemory>(m, "FlowMemory")
      .def(nb::init<std::size_t, const std::vector<double>&, const std::vector<double>&, const std::vector<double>&>())
      .def("grow", &FlowMemory::grow)
      .def("reset",
           [](FlowMemory& self, const Vector<const std::int64_t>& rows) {
             require_rows_below(rows, self.size());
             for (std::size_t i = 0; i < rows.shape(0); ++i) self.reset(static_cast<std::size_t>(rows(i)));
           })
      .def("record",
           [](FlowMemory& self, const Vector<const std::int64_t>& rows, const Matrix<const std::uint8_t>& stats) {
             require_rows_of<reinet_flow_stats>(stats);
             require(rows.shape(0) == stats.shape(0), "rows and stats differ in length");
             require_rows_below(rows, self.size());
             for (std::size_t i = 0; i < rows.shape(0); ++i)
               self.record(static_cast<std::size_t>(rows(i)), record_at<reinet_flow_stats>(stats, i));
           })
      .def("decide",
           [](FlowMemory& self, const Vector<const std::int64_t>& rows, const Vector<const std::uint64_t>& now_ns,
              const Matrix<const std::uint8_t>& stats, const Matrix<const std::uint8_t>& verdicts) {
             require_rows_of<reinet_flow_stats>(stats);
             require_rows_of<Verdict>(verdicts);
             require(rows.shape(0) == stats.shape(0) && rows.shape(0) == verdicts.shape(0) &&
                         rows.shape(0) == now_ns.shape(0),
                     "rows, times, stats and verdicts differ in length");
             require_rows_below(rows, self.size());
             for (std::size_t i = 0; i < rows.shape(0); ++i)
               self.decide(static_cast<std::size_t>(rows(i)), now_ns(i), record_at<reinet_flow_stats>(stats, i).time_ns,
                           static_cast<std::uint8_t>(record_at<Verdict>(verdicts, i).code));
           })
      .def("seen",
           [](const FlowMemory& self, std::size_t row, std::uint64_t cookie, const Matrix<std::uint8_t>& records) {
             require_rows_of<reinet_flow_stats>(records);
             require(row < self.size() && records.shape(0) == FlowMemory::kKept, "no such row, or no room for it");
             reinet_flow_stats kept[FlowMemory::kKept];
             std::uint64_t decided_ns = 0;
             const std::size_t count = self.seen(row, cookie, kept, decided_ns);
             for (std::size_t i = 0; i < count; ++i) put_record(records, i, kept[i]);
             return nb::make_tuple(count, decided_ns);
           })
      .def("counts", [](const FlowMemory& self) {
        nb::dict found;
        found["rtt_s"] = counted(self.rtt_s);
        found["queueing_s"] = counted(self.queueing_s);
        found["rate"] = counted(self.rate);
        found["latency_s"] = counted(self.latency_s);
        found["verdicts"] = nb::cast(std::vector<std::int64_t>(self.verdicts.begin(), self.verdicts.end()));
        return found;
      });
}

void bind_bank(nb::module_& m) {
  nb::class_<StateBank>(m, "StateBank")
      .def("__init__",
           [](StateBank* self, std::size_t capacity, std::size_t set, const Matrix<const double>& table, int reward,
              double delay_weight, double room_beyond_us) {
             const FeatureSet& chosen = feature_set_at(set);
             new (self) StateBank(capacity, chosen, table_from(chosen, table), static_cast<RewardKind>(reward),
                                  delay_weight, room_beyond_us);
           })
      .def_prop_ro("capacity", &StateBank::capacity)
      .def("grow", &StateBank::grow)
      .def("reset", [](StateBank& self, const Vector<const std::int32_t>& rows) { self.reset(span_of(rows)); })
      .def("longer_us",
           [](const StateBank& self, const Vector<const std::int32_t>& rows, const Vector<std::uint32_t>& found_us) {
             require(rows.shape(0) == found_us.shape(0), "rows and times differ in length");
             self.longer_us(span_of(rows), found_us.data());
           })
      .def("show",
           [](const StateBank& self, std::size_t row, const Vector<float>& state) {
             require(row < self.capacity() && state.shape(0) == self.feature_set().state_size(), "no such row");
             return self.show(row, state.data());
           })
      // offers: a row (bytes, unit_bytes) for each record, or none where the reward needs none.
      .def("update", [](StateBank& self, const Vector<const std::int32_t>& rows,
                        const Matrix<const std::uint8_t>& stats, const Matrix<const double>& offers,
                        const Matrix<float>& states, const Vector<float>& rewards, const Vector<float>& rule_pkts,
                        const Vector<std::uint8_t>& decided, const Vector<std::uint8_t>& may_cap) {
        require_rows_of<reinet_flow_stats>(stats);
        const std::size_t n = rows.shape(0);
        require(stats.shape(0) == n && states.shape(0) == n && states.shape(1) == self.feature_set().state_size() &&
                    rewards.shape(0) == n && rule_pkts.shape(0) == n && decided.shape(0) == n && may_cap.shape(0) == n,
                "rows, stats and outputs differ in length");
        require(offers.shape(0) == (self.needs_offers() ? n : 0) && offers.shape(1) == 2,
                "the reward regret needs one offer of the link for each record, and no other reward takes any");
        std::vector<Offer> offered;
        for (std::size_t i = 0; i < offers.shape(0); ++i) offered.push_back({offers(i, 0), offers(i, 1)});
        self.update(span_of(rows), stats.data(), offered,
                    {states.data(), rewards.data(), rule_pkts.data(), decided.data(), may_cap.data()});
      });
}

}  // namespace

void bind_state(nb::module_& m) {
  bind_periods(m);
  bind_features(m);
  bind_rewards(m);
  bind_heads(m);
  bind_guard(m);
  bind_memory(m);
  bind_bank(m);
  bind_reflex(m);
}

}  // namespace reinet
