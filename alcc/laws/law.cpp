// SPDX-License-Identifier: Apache-2.0
#include "alcc/laws/law.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "alcc/laws/model.hpp"
#include "core/states/calm.hpp"
#include "core/states/heads.hpp"
#include "core/states/state.hpp"
#include "core/states/target.hpp"

namespace reinet::alcc {

namespace {

// Of a law whose features need no model's statistics. It never ends: the gate's thread goes on while the program exits.
const StateConfig& plain_config() {
  static const StateConfig& config =
      *new StateConfig(state_config(kFeatureSetOf<DeepCcSet>, typical_table(DeepCcSet::kInputs), RewardKind::deepcc,
                                    0.0, std::numeric_limits<double>::infinity()));
  return config;
}

std::uint32_t wanted_pkts(const reinet_flow_stats& s, float rule_pkts, const float* state, const Settings& settings) {
  switch (settings.law) {
    case Settings::Law::none:
      return 0;
    case Settings::Law::fixed:
      return settings.fixed_pkts;
    case Settings::Law::rule:
      return rule_pkts > 0.0F ? round_cap_pkts(settings.gain * static_cast<double>(rule_pkts), kMaxCapPkts) : 0;
    case Settings::Law::policy:
      return learned_cap_pkts(settings.model->head, settings.model->network.act(state), s, rule_pkts,
                              settings.model->calm_rtts, kMaxCapPkts);
    case Settings::Law::published:  // look
    case Settings::Law::daemon:     // decides elsewhere
      break;
  }
  return 0;
}

}  // namespace

void Law::write_target(reinet_flow_stats& s, const Settings& settings) const {
  TargetLine{settings.target_min_rtts, 1.0 * settings.target_extra_us}.write(s, states_ ? states_->longer_us(0) : 0);
}

std::uint32_t Law::decide(const reinet_flow_stats& s, const Settings& settings) {
  if (settings.law == Settings::Law::published) return cap_pkts_;
  const bool learned = settings.law == Settings::Law::policy;
  if (!states_) states_ = (learned ? *settings.model->set : kFeatureSetOf<DeepCcSet>).make(RewardKind::deepcc, 1);
  std::array<float, kMostUnits> state;
  const StateConfig& config = learned ? settings.model->config : plain_config();
  const Update update = states_->update(0, s, config, Offer{}, state.data());
  if (!update.decided) return cap_pkts_;
  const bool may_cap = update.may_cap || settings.always;
  const std::uint32_t wanted = may_cap ? wanted_pkts(s, update.rule_pkts, state.data(), settings) : 0;
  const GuardRules rules{
      .bounds_steps = learned, .looks = !settings.always, .aims_at_target = learned && !settings.always};
  cap_pkts_ = guard_.judge(s, wanted, may_cap, rules).allowed_pkts;
  return cap_pkts_;
}

void Law::look(const KernelView& view, std::uint64_t now_ns, const Settings& settings, std::uint64_t seed) {
  if (settings.law != Settings::Law::published) return;
  if (!published_) published_ = std::make_unique<PublishedLaw>(settings.published, seed);
  cap_pkts_ = published_->look(view, now_ns);
}

}  // namespace reinet::alcc
