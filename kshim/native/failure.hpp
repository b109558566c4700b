// SPDX-License-Identifier: Apache-2.0
// A system call that failed: what was tried, and the kernel's reason. Python sees an OSError with that errno.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

namespace reinet {

class Failure : public std::system_error {
 public:
  Failure(int error, const std::string& attempted) : std::system_error(error, std::generic_category(), attempted) {}
};

inline int checked(int result, const std::string& attempted) {
  if (result < 0) throw Failure(errno, attempted);
  return result;
}

}  // namespace reinet
