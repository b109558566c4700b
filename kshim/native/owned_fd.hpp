// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed with its owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace reinet {

struct OwnedFd {
  int fd = -1;
  explicit OwnedFd(int owned) : fd(owned) {}
  OwnedFd(OwnedFd&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~OwnedFd() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace reinet
