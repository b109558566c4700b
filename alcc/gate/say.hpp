// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_SAY_HPP
#define REINET_ALCC_SAY_HPP

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

namespace reinet::alcc {

// Says a line on standard error, in one write and past our own hooks.
[[gnu::format(printf, 1, 2)]] inline void say(const char* format, ...) {
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
