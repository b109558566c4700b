// SPDX-License-Identifier: Apache-2.0
// What the gate lets through for what its looks miss, without a connection.
#include "alcc/gate/missing.hpp"

#include "driven.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace reinet {

void bind_missing(nb::module_& m) {
  using alcc::Missing;
  nb::class_<Missing>(m, "Missing")
      .def(nb::init<>())
      .def("begin", &Missing::begin, "now_ns"_a)
      .def("end", &Missing::end)
      .def("look", &Missing::look, "now_ns"_a, "room_bytes"_a)
      .def("send", &Missing::send, "bytes"_a)
      .def("make_up", &Missing::make_up, "now_ns"_a, "srtt_us"_a, "mss_bytes"_a, "heard"_a)
      .def_prop_ro("pkts", &Missing::pkts);
}

}  // namespace reinet
