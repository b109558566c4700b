// SPDX-License-Identifier: Apache-2.0
//
// The C library's own functions, behind ours of the same name.
#ifndef REINET_ALCC_REAL_HPP
#define REINET_ALCC_REAL_HPP

#include <dlfcn.h>

#include <atomic>

// What the headers say of a function, such as that it never returns null, is no part of its pointer's type.
#pragma GCC diagnostic ignored "-Wignored-attributes"

namespace reinet::alcc {

template <class Function>
class Real {
 public:
  constexpr explicit Real(const char* name) : name_(name) {}
  Function get() {
    auto found = function_.load(std::memory_order_relaxed);
    if (!found) {
      found = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name_));
      function_.store(found, std::memory_order_relaxed);
    }
    return found;
  }

 private:
  const char* name_;
  std::atomic<Function> function_{nullptr};
};

}  // namespace reinet::alcc

// Declares real_NAME, a function pointer's holder, for a function that the headers declare.
#define REINET_REAL(name) \
  constinit ::reinet::alcc::Real<decltype(&::name)> real_##name { #name }
// What the program sees instead of the C library's function.
#define REINET_HOOK extern "C" [[gnu::visibility("default")]]

#endif
