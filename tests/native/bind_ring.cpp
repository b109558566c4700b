// SPDX-License-Identifier: Apache-2.0
// The reading end of a ring buffer over any memory that is laid out as the kernel's.
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "driven.hpp"
#include "kshim/native/ring.hpp"

namespace nb = nanobind;

namespace reinet {
namespace {

class DrivenRing {
 public:
  DrivenRing(int fd, std::size_t bytes) : ring_(fd, bytes, "a driven ring") {}
  std::vector<std::uint64_t> consume() {
    std::vector<std::uint64_t> taken;
    ring_.consume<std::uint64_t>([&](std::uint64_t entry) { taken.push_back(entry); });
    return taken;
  }
  void discard() { ring_.discard(); }
  void wait() { ring_.wait(0); }

 private:
  Ring ring_;
};

}  // namespace

void bind_ring(nb::module_& m) {
  nb::class_<DrivenRing>(m, "DrivenRing")
      .def(nb::init<int, std::size_t>(), nb::arg("fd"), nb::arg("bytes"))
      .def("consume", &DrivenRing::consume)
      .def("discard", &DrivenRing::discard)
      .def("wait", &DrivenRing::wait);
}

}  // namespace reinet
