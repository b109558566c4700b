// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_UDP_CLOCK_HPP
#define REINET_ALCC_UDP_CLOCK_HPP

#include <ctime>

#include "core/cc/clock.hpp"

namespace reinet::alcc {

// The time of a law outside the simulator; it never runs backwards.
inline Us now_us() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Us>(now.tv_sec) * 1'000'000 + static_cast<Us>(now.tv_nsec) / 1000;
}

}  // namespace reinet::alcc

#endif
