// SPDX-License-Identifier: Apache-2.0
//
// The deciders on records from elsewhere, so that a test can compare them with those of agents/decide/.
#include <cstddef>
#include <cstdint>

#include "alcc/gate/law.hpp"
#include "alcc/preload/real.hpp"

// Fills, for each record of one flow, the target that the settings resolve to and the cap decided on it. Returns 0, or
// -1 for settings that make no sense.
REINET_HOOK int reinet_alcc_replay(const char* text, const reinet_flow_stats* records, std::size_t count,
                                   std::uint32_t* targets_us, std::uint32_t* caps_pkts) {
  const auto settings = reinet::alcc::parse_settings(text);
  if (!settings) return -1;
  reinet::alcc::Law law;
  for (std::size_t i = 0; i < count; ++i) {
    reinet_flow_stats record = records[i];
    record.target_us = targets_us[i] = reinet::alcc::resolve_target_us(*settings, record.min_rtt_us);
    caps_pkts[i] = law.decide(record, *settings);
  }
  return 0;
}
