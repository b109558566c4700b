// SPDX-License-Identifier: Apache-2.0
// One flow's period, fed with ACKs from outside.
#ifndef REINET_PERIOD_TRACKER_HPP
#define REINET_PERIOD_TRACKER_HPP

#include <cstdint>

#include "core/period.h"

namespace reinet {

class PeriodTracker {
 public:
  PeriodTracker(std::uint64_t min_period_ns, bool packet_timed) : config_{min_period_ns, packet_timed ? 1U : 0U, 0} {}

  // Both return true, and fill the record, when one is due.
  bool on_ack(const reinet_ack& ack, reinet_flow_stats& record) {
    return reinet_period_on_ack(&period_, &config_, &ack, &record);
  }
  bool on_tick(std::uint64_t now_ns, bool outstanding, reinet_flow_stats& record) {
    return reinet_period_on_tick(&period_, now_ns, outstanding, &record);
  }
  void on_restart(std::uint64_t now_ns) { reinet_period_on_restart(&period_, now_ns); }

 private:
  reinet_period_config config_;
  reinet_period period_{};
};

}  // namespace reinet

#endif
