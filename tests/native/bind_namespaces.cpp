// SPDX-License-Identifier: Apache-2.0
// Work in the network namespaces of this host, without programs in the kernel.
#include <nanobind/stl/pair.h>

#include <chrono>

#include "driven.hpp"
#include "kshim/native/namespaces.hpp"

namespace nb = nanobind;

namespace reinet {

void bind_namespaces(nb::module_& m) {
  m.def(
      "visit_namespaces",
      [](int most_ms, bool held) {
        int visited = 0;
        const Deadline until = std::chrono::steady_clock::now() + std::chrono::milliseconds(most_ms);
        const bool in_time = (held ? in_reachable_namespaces : in_inhabited_namespaces)([&] { visited++; }, until);
        return std::pair(visited, in_time);
      },
      nb::arg("most_ms"), nb::arg("held"));
}

}  // namespace reinet
