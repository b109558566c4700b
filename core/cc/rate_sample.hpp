// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RATE_SAMPLE_HPP
#define REINET_RATE_SAMPLE_HPP

#include <cstdint>

#include "core/cc/clock.hpp"

namespace reinet {

// One delivery rate sample (draft-ietf-ccwg-bbr section 4.1; the kernel's struct rate_sample).
struct RateSample {
  std::uint64_t prior_delivered_pkts = 0;  // when the newest delivered packet was sent
  std::uint32_t delivered_pkts = 0;        // since then; 0 = no sample
  Us interval_us = 0;                      // 0 = no sample
  bool app_limited = false;
  Us delivered_us = 0;  // time of the connection's last delivery

  bool valid() const { return delivered_pkts > 0 && interval_us > 0; }
};

}  // namespace reinet

#endif
