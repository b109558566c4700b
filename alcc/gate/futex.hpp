// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_FUTEX_HPP
#define REINET_ALCC_FUTEX_HPP

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace reinet::alcc {

inline std::uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

// Waits while the word has that value. Without a timeout the kernel restarts the call after handlers that ask for it
// (SA_RESTART), as it restarts a write; with one it never does, which is also what it does to a write with SO_SNDTIMEO.
inline long futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, timeout, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace reinet::alcc

#endif
