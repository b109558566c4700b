// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_NATIVE_UDP_HPP
#define REINET_ALCC_NATIVE_UDP_HPP

#include <nanobind/nanobind.h>

namespace reinet::alcc {

void bind_udp(nanobind::module_& m);

}  // namespace reinet::alcc

#endif
