// SPDX-License-Identifier: Apache-2.0
// The RTT to stay below, as core/target.py has it, for whoever resolves it record by record.
#ifndef REINET_TARGET_HPP
#define REINET_TARGET_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/flow_stats.h"

namespace reinet {

// Neither a record that nobody filled nor the kernel's tcp_min_rtt() before the first sample.
inline bool rtt_known(std::uint32_t min_rtt_us) { return min_rtt_us != 0 && min_rtt_us != ~0U; }

// So many minimum RTTs and so much more.
struct TargetLine {
  double min_rtts = 0;
  double extra_us = 0;

  // Returns it for a path, 0 while it is unknown.
  std::uint32_t resolve_us(std::uint32_t min_rtt_us) const {
    if (min_rtts > 0 && !rtt_known(min_rtt_us)) return 0;
    const double target_us = std::ceil(min_rtts * min_rtt_us) + extra_us;
    return static_cast<std::uint32_t>(std::clamp(target_us, 1.0, static_cast<double>(~0U)));
  }

  // Writes it into a record. longer_us: what its path has become, where that is longer than the record says.
  void write(reinet_flow_stats& s, std::uint32_t longer_us) const {
    constexpr std::uint32_t relative = REINET_FLAG_RELATIVE;
    s.flags = min_rtts > 0 ? s.flags | relative : s.flags & ~relative;
    s.target_us = resolve_us(std::max(s.min_rtt_us, longer_us));
  }
};

}  // namespace reinet

#endif
