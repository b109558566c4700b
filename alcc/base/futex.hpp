// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_FUTEX_HPP
#define REINET_ALCC_FUTEX_HPP

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

#include "alcc/base/real.hpp"

namespace reinet::alcc {

// Waits while the word has that value. Without a timeout the kernel restarts the call after handlers that ask for it
// (SA_RESTART), as it restarts a write; with one it never does, which is also what it does to a write with SO_SNDTIMEO.
inline long futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, timeout, nullptr, 0);
}

// The same, and a cancellation of the thread ends it as it ends a write that waits in the kernel. syscall() is declared
// to let nothing through that is unwound, and in the preload it is our own: hence the C library's by its address.
inline constinit Real<long (*)(long, ...)> unwinding_syscall{"syscall"};

inline long futex_wait_or_cancel(std::atomic<std::uint32_t>& word, std::uint32_t value, const timespec* timeout) {
  const auto call = unwinding_syscall.get();
  int before;
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
  const long result = call(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, timeout, nullptr, 0);
  const int error = errno;
  pthread_setcanceltype(before, nullptr);
  errno = error;
  return result;
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace reinet::alcc

#endif
