// SPDX-License-Identifier: Apache-2.0
// Parts of the simulator and of the shim without the rest around them, to be driven step by step by tests. No wheel has
// them.
#ifndef REINET_DRIVEN_HPP
#define REINET_DRIVEN_HPP

#include <nanobind/nanobind.h>

namespace reinet {

void bind_control(nanobind::module_& m);
void bind_ends(nanobind::module_& m);
void bind_law(nanobind::module_& m);
void bind_missing(nanobind::module_& m);
void bind_namespaces(nanobind::module_& m);
void bind_period(nanobind::module_& m);
void bind_ring(nanobind::module_& m);
void bind_slots(nanobind::module_& m);
void bind_virtual_cubic(nanobind::module_& m);

}  // namespace reinet

#endif
