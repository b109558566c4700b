// SPDX-License-Identifier: Apache-2.0
// What Python sees of the C++ core.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>

#include "core/bindings.hpp"
#include "core/wire.hpp"

namespace nb = nanobind;

namespace reinet {
void bind_state(nb::module_& m);  // bind_state.cpp
}

namespace {

using Field = std::tuple<std::string, std::string, std::size_t>;

constexpr const char* numpy_u64 = "<u8";
constexpr const char* numpy_u32 = "<u4";
constexpr const char* numpy_s32 = "<i4";

#define FIELD_OF(record, type, name) Field{#name, numpy_##type, offsetof(record, name)},
#define FLOW_STATS_FIELD(type, name) FIELD_OF(reinet_flow_stats, type, name)
#define ACK_FIELD(type, name) FIELD_OF(reinet_ack, type, name)
const std::vector<Field> flow_stats_fields = {REINET_FLOW_STATS_FIELDS(FLOW_STATS_FIELD)};
const std::vector<Field> ack_fields = {REINET_ACK_FIELDS(ACK_FIELD)};

}  // namespace

NB_MODULE(_core, m) {
  m.attr("FLOW_STATS_FIELDS") = nb::cast(flow_stats_fields);
  m.attr("FLOW_STATS_SIZE") = sizeof(reinet_flow_stats);
  m.attr("ACK_FIELDS") = nb::cast(ack_fields);
  m.attr("ACK_SIZE") = sizeof(reinet_ack);
#define DECLARE_FLAG(name, value) m.attr("FLAG_" #name) = static_cast<unsigned>(REINET_FLAG_##name);
  REINET_FLAGS(DECLARE_FLAG)
#undef DECLARE_FLAG
  m.attr("HEADER_BYTES") = reinet::kHeaderBytes;
  m.attr("OPPORTUNITY_BYTES") = reinet::kOpportunityBytes;
  reinet::bind_state(m);
}
