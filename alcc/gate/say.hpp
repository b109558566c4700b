// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_SAY_HPP
#define REINET_ALCC_SAY_HPP

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

namespace reinet::alcc {

// Whether a descriptor is a connection to another host: servers that inetd starts, and vsftpd, have their client there.
inline bool is_internet_socket(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && (domain == AF_INET || domain == AF_INET6);
}

// Says a line on standard error, in one write and past our own hooks; never to a client.
[[gnu::format(printf, 1, 2)]] inline void say(const char* format, ...) {
  if (is_internet_socket(STDERR_FILENO)) return;
  char line[512] = "reinet: ";
  va_list arguments;
  va_start(arguments, format);
  int size = 8 + vsnprintf(line + 8, sizeof line - 9, format, arguments);
  va_end(arguments);
  if (size > static_cast<int>(sizeof line) - 2) size = sizeof line - 2;
  line[size++] = '\n';
  [[maybe_unused]] const long said = syscall(SYS_write, STDERR_FILENO, line, size);
}

}  // namespace reinet::alcc

#endif
