// SPDX-License-Identifier: Apache-2.0
//
// System calls that a program makes by their number, through the C library's syscall().
//
//   io_uring_setup   An io_uring brings bytes into sockets and puts them into epoll past the C library. Bytes are found
//                    out by counting (Flow::is_bypassed). libuv's (Node.js, uvloop) does the other: a closed gate then
//                    looks writable, and the program tries again without end, which the flow finds out where it knows
//                    of a ring (Flow::arm). Who asked for it has rings refused as many containers refuse them, and
//                    libuv does without. Rings of programs with a system call of their own, as liburing's, are not
//                    seen.
//   clone, fork      Without memory in common it is fork(), whose handlers it does not call (vsftpd's sessions). So is
//                    the C library's _Fork().
//   seccomp          As prctl's (alcc/preload/limits.cpp).
//   capset, setuid   They change what the calling thread may, and landlock_restrict_self does; see users.cpp.
//   close            libuv's (Node.js, uvloop). Allocators make it too, within the first malloc of all: where nothing
//                    of the gate is made yet, nothing is made for it.
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

#include "alcc/base/real.hpp"
#include "alcc/base/say.hpp"
#include "alcc/gate/process.hpp"
#include "alcc/preload/alone.hpp"
#include "alcc/preload/forget.hpp"

using reinet::alcc::Inside;
using reinet::alcc::process;

namespace {

REINET_REAL(syscall);
constinit reinet::alcc::Real<pid_t (*)()> real__Fork{"_Fork"};  // newer than many headers

bool is_refused() {
  static std::atomic<bool> said{false};
  const reinet::alcc::Process& p = process();
  if (!p.wanted() || !p.settings.no_io_uring) return false;
  if (!said.exchange(true)) reinet::alcc::say("io_uring is refused, as was asked for");
  return true;
}

// Where the stack is another, the child does not come back here.
bool forks(long number, const long* a) {
#ifdef SYS_fork
  if (number == SYS_fork) return true;
#endif
  if (number == SYS_clone) return !(a[0] & CLONE_VM) && a[1] == 0;
#ifdef SYS_clone3
  if (number == SYS_clone3 && a[1] >= CLONE_ARGS_SIZE_VER0) {
    clone_args arguments{};
    iovec own{&arguments, sizeof arguments}, theirs{reinterpret_cast<void*>(a[0]), CLONE_ARGS_SIZE_VER0};
    // What cannot be read is for the kernel to refuse.
    if (process_vm_readv(getpid(), &own, 1, &theirs, 1, 0) == CLONE_ARGS_SIZE_VER0)
      return !(arguments.flags & CLONE_VM) && arguments.stack == 0;
  }
#endif
  return false;
}

// Makes a call that is fork() without its handlers.
template <class Call>
auto forking(Call&& call) {
  const Inside inside;
  if (!inside || !process().is_here()) return call();
  process().begin_fork();
  const auto result = call();
  const int error = errno;
  process().end_fork(result == 0);
  errno = error;
  return result;
}

bool is_of_privileges(long number) {
#ifdef SYS_landlock_restrict_self
  if (number == SYS_landlock_restrict_self) return true;
#endif
  switch (number) {
    case SYS_capset:
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_setgroups:
      return true;
    default:
      return false;
  }
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
  if (number == SYS_seccomp && a[0] <= SECCOMP_SET_MODE_FILTER && (a[0] == SECCOMP_SET_MODE_STRICT || a[2]))
    process().leave("it forbids itself system calls (seccomp)");
  if (number == SYS_close && reinet::alcc::is_made()) reinet::alcc::forget(static_cast<int>(a[0]));
  const auto call = [&] { return real_syscall.get()(number, a[0], a[1], a[2], a[3], a[4], a[5]); };
  if (forks(number, a)) return forking(call);
  if (is_of_privileges(number)) return reinet::alcc::alone(call);
  const long result = call();
  if (number == SYS_io_uring_setup && result >= 0) process().has_io_uring = true;
  return result;
}

REINET_HOOK pid_t _Fork() noexcept {
  return forking([] { return real__Fork.get()(); });
}
