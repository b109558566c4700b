// SPDX-License-Identifier: Apache-2.0
//
// The calls that make, copy and close descriptors: what the table knows of one must not outlive it. Calls that a
// program makes past the C library are found out later, by the socket's cookie (alcc/preload/forget.hpp).
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>

#include "alcc/base/real.hpp"
#include "alcc/preload/alone.hpp"
#include "alcc/preload/forget.hpp"

using reinet::alcc::forget;
using reinet::alcc::fresh;
using reinet::alcc::in_table;
using reinet::alcc::process;

namespace {

REINET_REAL(close);
REINET_REAL(dup);
REINET_REAL(dup2);
REINET_REAL(dup3);
REINET_REAL(fcntl);
constinit reinet::alcc::Real<decltype(&::fcntl)> real_fcntl64{"fcntl64"};
REINET_REAL(socket);
REINET_REAL(accept);
REINET_REAL(accept4);
constinit reinet::alcc::Real<int (*)(unsigned, unsigned, int)> real_close_range{"close_range"};
constinit reinet::alcc::Real<void (*)(int)> real_closefrom{"closefrom"};

int copied(int fd, int copy) {
  if (copy >= 0 && process().wanted()) in_table([=](auto& table) { table.duplicate(fd, copy); });
  return copy;
}

// Counted for whoever reads the sums: a server may send over what it accepts by calls that are not hooked.
int accepted(int fd) {
  fresh(fd);
  if (fd >= 0 && process().wanted() && process().report.is_shared())
    in_table([=](auto&) {
      if (reinet::alcc::is_tcp(fd)) ++process().report.sums().accepted;
    });
  return fd;
}

void forget_range(unsigned first, unsigned last) {
  if (!process().wanted()) return;
  const int highest = process().table.highest_fd();
  for (std::int64_t fd = first; fd <= std::min<std::int64_t>(last, highest); ++fd) forget(static_cast<int>(fd));
}

template <class Function>
int copying_fcntl(Function real, int fd, int command, void* argument) {
  const int result = real(fd, command, argument);
  return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(fd, result) : result;
}

}  // namespace

REINET_HOOK int close(int fd) {
  forget(fd);
  return real_close.get()(fd);
}

REINET_HOOK int __close(int fd) { return close(fd); }

REINET_HOOK int close_range(unsigned first, unsigned last, int flags) noexcept {
  const auto real = real_close_range.get();
  if (real && (flags & 2U)) {  // CLOSE_RANGE_UNSHARE
    const int result = reinet::alcc::with_own_descriptors([=] { return real(first, last, flags); });
    // Of a thread that has company they are still open for the others: it is left alone, and forgets nothing.
    if (result == 0 && !(flags & 4U)) forget_range(first, last);
    return result;
  }
  if (!(flags & 4U)) forget_range(first, last);  // CLOSE_RANGE_CLOEXEC closes nothing
  if (real) return real(first, last, flags);
  errno = ENOSYS;
  return -1;
}

REINET_HOOK void closefrom(int first) noexcept {
  if (process().wanted())
    for (int fd = std::max(first, 0); fd <= process().table.highest_fd(); ++fd) forget(fd);
  if (const auto real = real_closefrom.get()) real(first);
}

REINET_HOOK int dup(int fd) noexcept { return copied(fd, real_dup.get()(fd)); }

REINET_HOOK int dup2(int fd, int copy) noexcept {
  if (fd == copy || real_fcntl.get()(fd, F_GETFD) < 0) return real_dup2.get()(fd, copy);
  forget(copy);
  return copied(fd, real_dup2.get()(fd, copy));
}

REINET_HOOK int dup3(int fd, int copy, int flags) noexcept {
  if (fd == copy || real_fcntl.get()(fd, F_GETFD) < 0) return real_dup3.get()(fd, copy, flags);
  forget(copy);
  return copied(fd, real_dup3.get()(fd, copy, flags));
}

REINET_HOOK int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return copying_fcntl(real_fcntl.get(), fd, command, argument);
}

REINET_HOOK int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return copying_fcntl(real_fcntl64.get(), fd, command, argument);
}

REINET_HOOK int socket(int domain, int type, int protocol) noexcept {
  return fresh(real_socket.get()(domain, type, protocol));
}

REINET_HOOK int accept(int fd, sockaddr* address, socklen_t* size) {
  return accepted(real_accept.get()(fd, address, size));
}

REINET_HOOK int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  return accepted(real_accept4.get()(fd, address, size, flags));
}
