// SPDX-License-Identifier: Apache-2.0
// CLOCK_MONOTONIC, which is also the clock of the records: bpf_ktime_get_ns().
#pragma once

#include <cstdint>
#include <ctime>

namespace reinet {

inline std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace reinet
