// SPDX-License-Identifier: Apache-2.0
//
// The deciders that run in the process: a fixed cap and the hand rule, behind the gate of no harm and the checks of
// agents/decide/guard.py (no cap before an RTT is known, none for a target out of reach). The rule's product, the
// heads' limits and the gate are the landed headers; a test compares the decisions with those of agents/decide/.
#ifndef REINET_ALCC_LAW_HPP
#define REINET_ALCC_LAW_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "alcc/gate/settings.hpp"
#include "core/flow_stats.h"
#include "core/states/delay_ratio.hpp"
#include "core/states/feature_sets.hpp"
#include "core/states/gate.hpp"
#include "core/states/heads.hpp"

namespace reinet::alcc {

inline bool rtt_known(std::uint32_t min_rtt_us) { return min_rtt_us != 0 && min_rtt_us != ~0U; }

// Returns the RTT to stay below, 0 = unknown; core/target.py.
inline std::uint32_t resolve_target_us(const Settings& settings, std::uint32_t min_rtt_us) {
  if (settings.target_min_rtts > 0 && !rtt_known(min_rtt_us)) return 0;
  const double target_us = std::ceil(settings.target_min_rtts * min_rtt_us) + settings.target_extra_us;
  return static_cast<std::uint32_t>(std::clamp(target_us, 1.0, static_cast<double>(~0U)));
}

class Law {
 public:
  // Takes a record whose target is set; returns the cap in packets from now on, 0 = none.
  std::uint32_t decide(const reinet_flow_stats& s, const Settings& settings) {
    const bool may_cap = gate_.update(s) || settings.always;
    if (!has_sample(s)) return cap_pkts_;
    static const Normaliser normaliser(typical_table(DeepCcSet::kInputs));
    features_.update(s, normaliser);
    cap_pkts_ = may_cap && allowed(s) ? wanted_pkts(settings) : 0;
    return cap_pkts_;
  }

  std::uint32_t cap_pkts() const { return cap_pkts_; }

 private:
  static bool allowed(const reinet_flow_stats& s) {
    return rtt_known(s.min_rtt_us) && s.target_us >= kLeastTargetPerRtt * s.min_rtt_us;
  }

  std::uint32_t wanted_pkts(const Settings& settings) const {
    switch (settings.law) {
      case Settings::Law::none:
        return 0;
      case Settings::Law::fixed:
        return settings.fixed_pkts;
      case Settings::Law::rule:
        if (!(features_.rule_pkts > 0.0F)) return 0;
        return round_cap_pkts(settings.gain * static_cast<double>(features_.rule_pkts), kMaxCapPkts);
    }
    return 0;
  }

  Gate gate_;
  DeepCcSet features_;
  std::uint32_t cap_pkts_ = 0;
};

}  // namespace reinet::alcc

#endif
