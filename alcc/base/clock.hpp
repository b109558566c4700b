// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_CLOCK_HPP
#define REINET_ALCC_CLOCK_HPP

#include <cstdint>
#include <ctime>

namespace reinet::alcc {

// The time of a law outside the simulator (CLOCK_MONOTONIC); it never runs backwards.
inline std::uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}
inline std::uint64_t now_us() { return now_ns() / 1000; }

// Returns for how long that is still to come, 0 where it has passed.
inline std::uint64_t ns_until(std::uint64_t then_ns) {
  const std::uint64_t now = now_ns();
  return then_ns > now ? then_ns - now : 0;
}

inline timespec timespec_of(std::uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace reinet::alcc

#endif
