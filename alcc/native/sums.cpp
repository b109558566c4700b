// SPDX-License-Identifier: Apache-2.0
// Reads what processes under the gate have come to, for alcc/sums.py.
#include "alcc/gate/sums.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "alcc/native/parts.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace reinet::alcc {

namespace {

nb::dict dict_of(const Sums& s) {
  nb::dict d;
  d["flows"] = s.flows.load();
  d["bytes"] = s.bytes.load();
  d["closings"] = s.closings.load();
  d["openings"] = s.openings.load();
  d["records"] = s.records.load();
  d["decisions"] = s.decisions.load();
  d["capped"] = s.capped.load();
  d["not_gated"] = s.not_gated.load();
  d["accepted"] = s.accepted.load();
  d["delivered_bytes"] = s.delivered_bytes.load();
  d["delay_byte_us"] = s.delay_byte_us.load();
  d["saved_byte_us"] = s.saved_byte_us.load();
  return d;
}

// Returns how many processes took a place, and the places.
nb::tuple sums_of(nb::bytes copy) {
  if (copy.size() < sizeof(AllSums)) throw std::invalid_argument("too short for the sums of processes");
  const auto all = std::make_unique<AllSums>();
  std::memcpy(static_cast<void*>(all.get()), copy.c_str(), sizeof(AllSums));
  nb::list places;
  const std::uint64_t taken = all->taken.load();
  for (std::size_t i = 0; i < std::min<std::uint64_t>(taken, kMostPlaces); ++i) places.append(dict_of(all->places[i]));
  return nb::make_tuple(taken, places);
}

}  // namespace

void bind_sums(nb::module_& m) {
  m.attr("SUMS_BYTES") = sizeof(AllSums);
  m.attr("SUMS_PLACES") = kMostPlaces;
  m.attr("SUMS_MAGIC") = kSumsMagic;
  m.def("sums_of", &sums_of, "copy"_a);
}

}  // namespace reinet::alcc
