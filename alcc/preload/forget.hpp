// SPDX-License-Identifier: Apache-2.0
//
// A descriptor ends, or a new one has its number: what the table knows of the number must end too. A connection that
// was closed past the C library is found out by the next one that gets its number.
#ifndef REINET_ALCC_FORGET_HPP
#define REINET_ALCC_FORGET_HPP

#include <cerrno>

#include "alcc/gate/process.hpp"

namespace reinet::alcc {

// Runs what concerns the table, unless another process shares our memory (vfork) or a handler interrupted the gate.
template <class Do>
void in_table(Do&& what) {
  const Inside inside;
  if (!inside || !process().is_here()) return;
  const int error = errno;
  what(process().table);
  errno = error;
}

inline void forget(int fd) {
  // Most descriptors are nothing of ours; then there is no need to look who calls.
  if (process().wanted() && process().table.is_known(fd)) in_table([=](Table& table) { table.close(fd); });
}

// Takes what the kernel made, or -1, and returns it.
inline int fresh(int fd) {
  if (fd >= 0) forget(fd);
  return fd;
}

}  // namespace reinet::alcc

#endif
