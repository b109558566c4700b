// SPDX-License-Identifier: Apache-2.0
#include "alcc/laws/law.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "alcc/laws/model.hpp"
#include "core/states/calm.hpp"
#include "core/states/delay_ratio.hpp"
#include "core/states/heads.hpp"
#include "core/states/state.hpp"

namespace reinet::alcc {

namespace {

// As agents/decide/guard.py, which has their reasons.
constexpr double kMostRise = 4.0, kMostFall = 16.0;

// Returns the cap, no further from what is in force than these let it; 0 stays 0.
std::uint32_t bound_step_pkts(const reinet_flow_stats& s, std::uint32_t cap_pkts) {
  if (cap_pkts == 0) return 0;
  const double in_force_pkts = s.cap_pkts ? s.cap_pkts : s.cwnd_pkts;
  const double low_pkts = std::max<double>(std::ceil(in_force_pkts / kMostFall), kMinCapPkts);
  const double high_pkts = std::max<double>({in_force_pkts, 1.0 * s.cwnd_pkts, 1.0 * kMinCapPkts}) * kMostRise;
  return static_cast<std::uint32_t>(std::clamp<double>(cap_pkts, low_pkts, high_pkts));
}

bool rtt_known(std::uint32_t min_rtt_us) { return min_rtt_us != 0 && min_rtt_us != ~0U; }

bool allowed(const reinet_flow_stats& s) {
  return rtt_known(s.min_rtt_us) && s.target_us >= kLeastTargetPerRtt * s.min_rtt_us;
}

}  // namespace

std::uint32_t resolve_target_us(const Settings& settings, std::uint32_t min_rtt_us) {
  if (settings.target_min_rtts > 0 && !rtt_known(min_rtt_us)) return 0;
  const double target_us = std::ceil(settings.target_min_rtts * min_rtt_us) + settings.target_extra_us;
  return static_cast<std::uint32_t>(std::clamp(target_us, 1.0, static_cast<double>(~0U)));
}

std::uint32_t Law::decide(const reinet_flow_stats& s, const Settings& settings) {
  if (settings.law == Settings::Law::policy) return decide_learned(s, settings);
  if (settings.law == Settings::Law::published) return cap_pkts_;
  const bool may_cap = gate_.update(s) || settings.always;
  if (!has_sample(s)) return cap_pkts_;
  static const Normaliser normaliser(typical_table(DeepCcSet::kInputs));
  features_.update(s, normaliser);
  cap_pkts_ = may_cap && allowed(s) ? wanted_pkts(settings) : 0;
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
  if (!((update.may_cap && !yields) || settings.always) || !allowed(s)) return 0;
  const std::uint32_t wanted_pkts =
      cap_from_action(model.head, model.network.act(state.data()), s.cwnd_pkts, update.rule_pkts, kMaxCapPkts);
  return cap_pkts_ = bound_step_pkts(s, calm_cap_pkts(wanted_pkts, s, model.calm_rtts, kMaxCapPkts));
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
