// SPDX-License-Identifier: Apache-2.0
#include "driven.hpp"

NB_MODULE(_driven, m) {
  reinet::bind_control(m);
  reinet::bind_ends(m);
  reinet::bind_law(m);
  reinet::bind_missing(m);
  reinet::bind_namespaces(m);
  reinet::bind_period(m);
  reinet::bind_ring(m);
  reinet::bind_slots(m);
  reinet::bind_virtual_cubic(m);
}
