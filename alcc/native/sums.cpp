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

#define REINET_NAME(name) #name,
constexpr const char* kCounts[] = {REINET_SUM_COUNTS(REINET_NAME)};
#undef REINET_NAME

nb::dict dict_of(const Sums& s) {
  nb::dict d;
#define REINET_ITEM(name) d[#name] = s.name.load();
  REINET_SUM_COUNTS(REINET_ITEM)
  REINET_SUM_DELAYS(REINET_ITEM)
#undef REINET_ITEM
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
  nb::list counts;
  for (const char* name : kCounts) counts.append(name);
  m.attr("SUM_COUNTS") = nb::tuple(counts);
  m.def("sums_of", &sums_of, "copy"_a);
}

}  // namespace reinet::alcc
