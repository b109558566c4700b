// SPDX-License-Identifier: Apache-2.0
//
// States of flows: the latest observations of a feature set, newest first, and the reward and the hand rule's product
// that go with them. The only implementation; simulator, kernel environment and daemon all call it.
//
//   feature_sets.hpp  what is observed       normaliser.hpp  its statistics
//   reward.hpp        what a record earns    heads.hpp       how an action becomes a cap
//   core/guard/       whether a cap may bind
#ifndef REINET_STATE_HPP
#define REINET_STATE_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/flow_stats.h"
#include "core/guard/gate.hpp"
#include "core/states/feature_sets.hpp"
#include "core/states/normaliser.hpp"
#include "core/states/reward.hpp"

namespace reinet {

// How states and rewards are made; the same for all flows of a batch or a bank.
struct StateConfig {
  Normaliser normaliser;  // of the feature set's inputs
  RewardConfig reward;
  double room_beyond_us;  // features see as much room as a path is longer than this; infinite = the room as it is
};

// Returns the target that features see. On a long path a tight target makes a network give throughput away and win no
// delay for it (docs/training-options.md), so it is told of a later one; gate, guard and reward have the target as it
// is.
inline std::uint32_t told_target_us(const reinet_flow_stats& s, double room_beyond_us) {
  const double told_us = s.min_rtt_us + (s.min_rtt_us - room_beyond_us);
  return static_cast<std::uint32_t>(std::clamp<double>(told_us, s.target_us, ~0U));
}

// What a record made of its flow.
struct Update {
  bool decided;  // false for a record without an RTT sample, which leaves state and rule as they were
  float reward;
  float rule_pkts;
  bool may_cap;  // the flow has shown a queue of its own
};

// Flows of one feature set and one kind of reward. Calls cost a dispatch per record, and nothing per feature.
class FlowStates {
 public:
  virtual ~FlowStates() = default;
  // Takes a flow's record and writes the flow's state.
  virtual Update update(std::size_t flow, const reinet_flow_stats& s, const StateConfig& config, const Offer& offer,
                        float* state) = 0;
  // Writes the state as it is; returns the hand rule's product.
  virtual float show(std::size_t flow, float* state) const = 0;
  // Returns the least RTT of the flow's path where that has become longer than the kernel's, else 0: relative targets
  // are resolved by it.
  virtual std::uint32_t longer_us(std::size_t flow) const = 0;
  virtual void reset(std::size_t flow) = 0;
  virtual void grow(std::size_t flows) = 0;
  virtual std::size_t size() const = 0;
  virtual std::size_t memory_bytes() const = 0;
};

template <class Set, class Reward>
class FlowStatesOf final : public FlowStates {
 public:
  explicit FlowStatesOf(std::size_t flows) : flows_(flows) {}

  Update update(std::size_t flow, const reinet_flow_stats& record, const StateConfig& config, const Offer& offer,
                float* state) override {
    Flow& f = flows_[flow];
    const bool decided = has_sample(record);
    reinet_flow_stats s = without_ack_wait(record);
    const bool may_cap = f.gate.update(s);
    const double reward = f.reward.take(s, config.reward, offer);
    if (decided) {
      s = by_share(s);
      s.target_us = told_target_us(s, config.room_beyond_us);
      const auto observation = f.features.update(s, config.normaliser);
      std::copy_backward(f.history.begin(), f.history.end() - observation.size(), f.history.end());
      for (std::size_t i = 0; i < observation.size(); ++i) f.history[i] = static_cast<float>(observation[i]);
    }
    std::copy(f.history.begin(), f.history.end(), state);
    return {decided, static_cast<float>(reward), f.features.rule_pkts, may_cap};
  }

  float show(std::size_t flow, float* state) const override {
    std::copy(flows_[flow].history.begin(), flows_[flow].history.end(), state);
    return flows_[flow].features.rule_pkts;
  }
  std::uint32_t longer_us(std::size_t flow) const override { return flows_[flow].gate.longer_us(); }
  void reset(std::size_t flow) override { flows_[flow] = Flow{}; }
  void grow(std::size_t flows) override { flows_.resize(flows); }
  std::size_t size() const override { return flows_.size(); }
  std::size_t memory_bytes() const override {
    std::size_t bytes = sizeof(*this) + flows_.capacity() * sizeof(Flow);
    for (const Flow& f : flows_) bytes += f.features.heap_bytes();
    return bytes;
  }

 private:
  struct Flow {
    std::array<float, Set::kHistory * Set::kFeatures.size()> history{};
    Set features;
    Reward reward;
    PathGate gate;
  };

  std::vector<Flow> flows_;
};

// A feature set as a row of the table.
struct FeatureSet {
  const char* name;
  int version;
  std::size_t history;
  std::span<const Feature> features;
  std::span<const Input> inputs;
  const char* terms;
  const char* rule;
  void (*observe)(NormaliserTable&, const reinet_flow_stats&);
  std::unique_ptr<FlowStates> (*make)(RewardKind, std::size_t flows);

  std::size_t state_size() const { return history * features.size(); }
};

template <class Set>
void observe(NormaliserTable& table, const reinet_flow_stats& s) {
  if (!has_sample(s)) return;
  const auto x = Set::inputs_of(s);
  for (std::size_t i = 0; i < x.size(); ++i) table[i].add(x[i]);
}

template <class Set>
std::unique_ptr<FlowStates> make_flow_states(RewardKind reward, std::size_t flows) {
  switch (reward) {
    case RewardKind::deepcc:
      return std::make_unique<FlowStatesOf<Set, DeepCcReward>>(flows);
    case RewardKind::regret:
      return std::make_unique<FlowStatesOf<Set, RegretReward<false>>>(flows);
    case RewardKind::regret_linear:
      return std::make_unique<FlowStatesOf<Set, RegretReward<true>>>(flows);
  }
  return nullptr;
}

template <class Set>
constexpr FeatureSet kFeatureSetOf{Set::kName,  Set::kVersion, Set::kHistory, Set::kFeatures,        Set::kInputs,
                                   Set::kTerms, Set::kRule,    &observe<Set>, &make_flow_states<Set>};

template <class... Sets>
constexpr std::array<FeatureSet, sizeof...(Sets)> table_of(FeatureSetList<Sets...>) {
  return {kFeatureSetOf<Sets>...};
}
constexpr auto kFeatureSets = table_of(FeatureSets{});

inline const FeatureSet& feature_set_at(std::size_t number) {
  if (number >= kFeatureSets.size()) throw std::out_of_range("there is no feature set " + std::to_string(number));
  return kFeatureSets[number];
}

// The paper's reward uses the statistics that its features use; beside features without them, the typical ones.
inline StateConfig state_config(const FeatureSet& set, const NormaliserTable& table, RewardKind reward,
                                double delay_weight, double room_beyond_us) {
  const bool has_its_inputs = set.inputs.data() == OfDeepCc::kInputs.data();
  return {Normaliser(table),
          {reward, delay_weight, Normaliser(has_its_inputs ? table : typical_table(kDeepCcInputs))},
          room_beyond_us};
}

}  // namespace reinet

#endif
