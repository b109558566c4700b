// SPDX-License-Identifier: Apache-2.0
//
// What a process forbids itself.
//
//   setrlimit   Where no more processes are allowed (vsftpd), no more threads are: the pacer's is made before.
//   prctl       Seccomp ends a process for a call that its filter's author did not foresee, and the gate makes such: no
//               gate from then on. What a thread may ever do it changes for the calling one alone, see users.cpp.
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cstdarg>

#include "alcc/base/real.hpp"
#include "alcc/gate/process.hpp"
#include "alcc/preload/alone.hpp"

using reinet::alcc::Inside;
using reinet::alcc::process;

namespace {

constinit reinet::alcc::Real<int (*)(int, const rlimit*)> real_setrlimit{"setrlimit"};
constinit reinet::alcc::Real<int (*)(pid_t, int, const rlimit*, rlimit*)> real_prlimit{"prlimit"};
REINET_REAL(prctl);

void before_limit(int resource, const rlimit* limit) {
  if (resource != RLIMIT_NPROC || !limit || limit->rlim_cur > 1) return;
  const Inside inside;
  if (inside && process().is_here()) process().pacer.keep();
}

bool is_of_privileges(int option) {
  return option == PR_SET_NO_NEW_PRIVS || option == PR_CAPBSET_DROP || option == PR_CAP_AMBIENT ||
         option == PR_SET_SECUREBITS;
}

}  // namespace

REINET_HOOK int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
  before_limit(static_cast<int>(resource), limit);
  return real_setrlimit.get()(static_cast<int>(resource), limit);
}

// Here both are of one layout.
REINET_HOOK int setrlimit64(__rlimit_resource_t resource, const rlimit64* limit) noexcept {
  return setrlimit(resource, reinterpret_cast<const rlimit*>(limit));
}

REINET_HOOK int prlimit(pid_t pid, __rlimit_resource resource, const rlimit* limit, rlimit* before) noexcept {
  if (pid == 0 || pid == process().pid) before_limit(static_cast<int>(resource), limit);
  return real_prlimit.get()(pid, static_cast<int>(resource), limit, before);
}

REINET_HOOK int prlimit64(pid_t pid, __rlimit_resource resource, const rlimit64* limit, rlimit64* before) noexcept {
  return prlimit(pid, resource, reinterpret_cast<const rlimit*>(limit), reinterpret_cast<rlimit*>(before));
}

REINET_HOOK int prctl(int option, ...) noexcept {
  unsigned long a[4];
  va_list arguments;
  va_start(arguments, option);
  for (unsigned long& argument : a) argument = va_arg(arguments, unsigned long);
  va_end(arguments);
  // Without a filter it is a question whether the kernel knows of them.
  if (option == PR_SET_SECCOMP && (a[0] == SECCOMP_MODE_STRICT || a[1]))
    process().leave("it forbids itself system calls (seccomp)");
  const auto call = [&] { return real_prctl.get()(option, a[0], a[1], a[2], a[3]); };
  return is_of_privileges(option) ? reinet::alcc::alone(call) : call();
}
