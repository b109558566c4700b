// SPDX-License-Identifier: Apache-2.0
//
// Calls that mean something else to a process of two threads, as which the kernel sees a program of one with the
// gate's.
#ifndef REINET_ALCC_ALONE_HPP
#define REINET_ALCC_ALONE_HPP

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "alcc/gate/process.hpp"

namespace reinet::alcc {

// Makes the call while there is no thread of the gate's.
template <class Function, class... Arguments>
auto alone(Function call, Arguments... arguments) {
  const Inside inside;
  if (!inside || !process().is_here()) return call(arguments...);
  process().pacer.pause();
  const auto result = call(arguments...);
  const int error = errno;
  process().pacer.resume();
  errno = error;
  return result;
}

// Makes a call that gives this thread a table of descriptors of its own. Where it is the program's only one, the gate's
// goes along: with the old table it would keep open what the program closes. Else the gate's stays with the others, and
// this one is left alone: its numbers are other descriptors'.
template <class Call>
int with_own_descriptors(Call&& call) {
  if (!process().wanted()) return call();
  bool has_company = false;
  const int result = alone([&] {
    const int error = errno;
    has_company = syscall(SYS_unshare, CLONE_THREAD) != 0;  // which is refused to all but a single thread
    errno = error;
    return has_company ? 0 : call();
  });
  if (!has_company) return result;
  const int later = call();
  if (later != 0 || inside_gate || !process().wanted() || !process().is_here()) return later;
  process().report.exempted("its thread has descriptors of its own (unshare, close_range)");
  inside_gate = true;
  return later;
}

}  // namespace reinet::alcc

#endif
