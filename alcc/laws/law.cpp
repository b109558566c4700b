// SPDX-License-Identifier: Apache-2.0
#include "alcc/laws/law.hpp"

#include <algorithm>
#include <array>

#include "alcc/laws/model.hpp"
#include "core/states/calm.hpp"
#include "core/states/guard.hpp"
#include "core/states/heads.hpp"
#include "core/states/state.hpp"
#include "core/states/target.hpp"

namespace reinet::alcc {

std::uint32_t resolve_target_us(const Settings& settings, std::uint32_t min_rtt_us) {
  return TargetLine{settings.target_min_rtts, 1.0 * settings.target_extra_us}.resolve_us(min_rtt_us);
}

std::uint32_t Law::decide(const reinet_flow_stats& record, const Settings& settings) {
  if (settings.law == Settings::Law::policy) return decide_learned(record, settings);
  if (settings.law == Settings::Law::published) return cap_pkts_;
  reinet_flow_stats s = record;
  const bool may_cap = gate_.update(s, true) || settings.always;
  if (!has_sample(s)) return cap_pkts_;
  static const Normaliser normaliser(typical_table(DeepCcSet::kInputs));
  features_.update(s, normaliser);
  cap_pkts_ = may_cap && may_be_capped(s) ? wanted_pkts(settings) : 0;
  return cap_pkts_;
}

void Law::look(const KernelView& view, std::uint64_t now_ns, const Settings& settings, std::uint64_t seed) {
  if (settings.law != Settings::Law::published) return;
  if (!published_) published_ = std::make_unique<PublishedLaw>(settings.published, seed);
  cap_pkts_ = published_->look(view, now_ns);
}

std::uint32_t Law::decide_learned(const reinet_flow_stats& s, const Settings& settings) {
  const Model& model = *settings.model;
  if (!states_) states_ = model.set->make(RewardKind::deepcc, 1);
  std::array<float, kMostUnits> state;
  const Update update = states_->update(0, s, model.config, Offer{}, state.data());
  if (!update.decided) return cap_pkts_;
  cap_pkts_ = 0;
  const bool yields = others_.update(s);
  if (!((update.may_cap && !yields) || settings.always) || !may_be_capped(s)) return 0;
  const std::uint32_t wanted_pkts =
      learned_cap_pkts(model.head, model.network.act(state.data()), s, update.rule_pkts, model.calm_rtts, kMaxCapPkts);
  if (wanted_pkts == kInvalidCapPkts) return 0;
  cap_pkts_ = bound_step_pkts(s, wanted_pkts, kMaxCapPkts);
  if (cap_pkts_ != 0) cap_pkts_ = std::max(cap_pkts_, std::min(others_.least_pkts(), kMaxCapPkts));
  return cap_pkts_;
}

std::uint32_t Law::wanted_pkts(const Settings& settings) const {
  switch (settings.law) {
    case Settings::Law::none:
      return 0;
    case Settings::Law::fixed:
      return settings.fixed_pkts;
    case Settings::Law::rule:
      if (!(features_.rule_pkts > 0.0F)) return 0;
      return round_cap_pkts(settings.gain * static_cast<double>(features_.rule_pkts), kMaxCapPkts);
    case Settings::Law::policy:     // decide_learned
    case Settings::Law::published:  // look
    case Settings::Law::daemon:     // decides elsewhere
      break;
  }
  return 0;
}

}  // namespace reinet::alcc
