// SPDX-License-Identifier: Apache-2.0
//
// An io_uring brings bytes into sockets and puts them into epoll past the C library. Bytes are found out by counting
// (Flow::was_bypassed). libuv's (Node.js, uvloop) does the other: a closed gate then looks writable, and the program
// tries again without end, which the flow finds out where it knows of a ring (Flow::arm). Who asked for it has rings
// refused as many containers refuse them, and libuv does without. Rings of programs with a system call of their own, as
// liburing's, are not seen.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

#include "alcc/gate/process.hpp"
#include "alcc/gate/say.hpp"
#include "alcc/preload/real.hpp"

namespace {

REINET_REAL(syscall);

bool is_refused() {
  static std::atomic<bool> said{false};
  const reinet::alcc::Process& p = reinet::alcc::process();
  if (!p.wanted() || !p.settings.no_io_uring) return false;
  if (!said.exchange(true)) reinet::alcc::say("io_uring is refused, as was asked for");
  return true;
}

}  // namespace

REINET_HOOK long syscall(long number, ...) noexcept {
  long a[6];
  va_list arguments;
  va_start(arguments, number);
  for (long& argument : a) argument = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_io_uring_setup && is_refused()) {
    errno = ENOSYS;
    return -1;
  }
  const long result = real_syscall.get()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == SYS_io_uring_setup && result >= 0) reinet::alcc::process().has_io_uring = true;
  return result;
}
