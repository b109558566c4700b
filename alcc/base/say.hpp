// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_SAY_HPP
#define REINET_ALCC_SAY_HPP

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <initializer_list>

namespace reinet::alcc {

// Whether a descriptor is a connection to another host: servers that inetd starts, and vsftpd, have their client there.
inline bool is_internet_socket(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && (domain == AF_INET || domain == AF_INET6);
}

// Which file standard error was when the program began.
inline struct stat standard_error{};
inline void remember_standard_error() {
  if (fstat(STDERR_FILENO, &standard_error) != 0) standard_error = {};
}

// Whether what has the number of standard error now is meant to be read: what the program began with, a terminal or
// null device, or a log. A program that closed it may have a file of data or a client there.
inline bool is_for_words() {
  struct stat now{};
  if (is_internet_socket(STDERR_FILENO) || fstat(STDERR_FILENO, &now) != 0) return false;
  if (now.st_dev == standard_error.st_dev && now.st_ino == standard_error.st_ino) return true;
  return S_ISCHR(now.st_mode) || (S_ISREG(now.st_mode) && (fcntl(STDERR_FILENO, F_GETFL) & O_APPEND));
}

// Writes past our own hooks; what the kernel would end the program for (nobody reads the pipe, the file may not grow)
// is dropped, and so is what would wait: for whoever reads a full pipe, or has stopped the terminal. Locks may be held
// here. No cancellation point, for what has something to say may be none.
inline void write_or_drop(int fd, const void* data, std::size_t size) {
  constexpr timespec kNone{};
  pollfd asked{fd, POLLOUT, 0};
  if (syscall(SYS_ppoll, &asked, 1, &kNone, nullptr, 0) != 1 || !(asked.revents & POLLOUT)) return;
  sigset_t fatal, before, pending;
  sigemptyset(&fatal);
  sigaddset(&fatal, SIGPIPE);
  sigaddset(&fatal, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &fatal, &before);
  sigpending(&pending);
  [[maybe_unused]] const long written = syscall(SYS_write, fd, data, size);
  for (const int number : {SIGPIPE, SIGXFSZ}) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    if (!sigismember(&pending, number)) syscall(SYS_rt_sigtimedwait, &one, nullptr, &kNone, _NSIG / 8);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Says a line on standard error, in one write and past our own hooks; never to a client.
[[gnu::format(printf, 1, 2)]] inline void say(const char* format, ...) {
  if (!is_for_words()) return;
  char line[512] = "reinet: ";
  va_list arguments;
  va_start(arguments, format);
  int size = 8 + vsnprintf(line + 8, sizeof line - 9, format, arguments);
  va_end(arguments);
  if (size > static_cast<int>(sizeof line) - 2) size = sizeof line - 2;
  line[size++] = '\n';
  write_or_drop(STDERR_FILENO, line, static_cast<std::size_t>(size));
}

}  // namespace reinet::alcc

#endif
