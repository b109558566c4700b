// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_NATIVE_PARTS_HPP
#define REINET_ALCC_NATIVE_PARTS_HPP

#include <nanobind/nanobind.h>

namespace reinet::alcc {

// What the other files of this folder add to the module of link.cpp.
void bind_udp(nanobind::module_& m);
void bind_signals(nanobind::module_& m);
void bind_sums(nanobind::module_& m);

}  // namespace reinet::alcc

#endif
