// SPDX-License-Identifier: Apache-2.0
//
// What a user may say of a path and of the flows through it: the native mirror of envs/link/spec.py, whose names, units
// and ranges these are. A row below makes the member, the attribute that Python sets (bindings.cpp) and the entry of
// the list that Python loops over; nothing else names the options but what uses them.
#ifndef REINET_OPTIONS_HPP
#define REINET_OPTIONS_HPP

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cc/clock.hpp"

namespace reinet {

using Steps = std::vector<std::pair<double, double>>;  // ms after the start, what holds from then on

// OPTION(type, name) for each: of a flow,
#define REINET_FLOW_OPTIONS(OPTION)         \
  OPTION(std::string, cc)                   \
  OPTION(double, start_ms)                  \
  OPTION(std::optional<double>, stop_ms)    \
  OPTION(double, mrtt_ms)                   \
  OPTION(std::optional<double>, forward_ms) \
  OPTION(std::uint64_t, flow_bytes)         \
  OPTION(double, app_mbps)                  \
  OPTION(std::uint64_t, object_bytes)       \
  OPTION(double, pause_ms)                  \
  OPTION(std::uint32_t, target_us)          \
  OPTION(std::uint32_t, cap_pkts)           \
  OPTION(bool, stepped)

// and of the path, for all its flows.
#define REINET_LINK_OPTIONS(OPTION)         \
  OPTION(std::string, queue)                \
  OPTION(std::uint32_t, buffer_bytes)       \
  OPTION(std::uint32_t, buffer_pkts)        \
  OPTION(std::uint32_t, codel_target_ms)    \
  OPTION(std::uint32_t, codel_interval_ms)  \
  OPTION(std::uint32_t, pie_reference_ms)   \
  OPTION(std::uint32_t, pie_burst_ms)       \
  OPTION(std::uint64_t, start_offset_ms)    \
  OPTION(std::uint64_t, seed)               \
  OPTION(std::uint32_t, mss_bytes)          \
  OPTION(std::uint32_t, late_us)            \
  OPTION(std::uint32_t, jitter_us)          \
  OPTION(std::uint32_t, forward_jitter_us)  \
  OPTION(double, pkts_per_ack)              \
  OPTION(double, decision_ms)               \
  OPTION(double, loss)                      \
  OPTION(Steps, detour_ms)                  \
  OPTION(Steps, wired_mbps)                 \
  OPTION(std::uint32_t, wired_buffer_bytes) \
  OPTION(std::string, scheduler)            \
  OPTION(double, fair_window_ms)

#define REINET_MEMBER(type, name) type name{};

struct FlowOptions {
  REINET_FLOW_OPTIONS(REINET_MEMBER)
};

struct LinkOptions {
  REINET_LINK_OPTIONS(REINET_MEMBER)
  std::vector<FlowOptions> flows;  // the first is the path's own
};

#undef REINET_MEMBER

// The one place where a user's units become the simulator's: halves of a microsecond go to the even one.
inline Us us_from_ms(double ms) { return static_cast<Us>(std::nearbyint(ms * 1000.0)); }
inline double bytes_per_s_from_mbps(double mbps) { return mbps * 125'000.0; }

inline Us start_us(const LinkOptions& link) { return link.start_offset_ms * kUsPerMs; }

// All flows in one queue, or a cell in which each is a user with a queue and a channel of its own.
constexpr std::array<std::string_view, 2> kSchedulers{"fifo", "proportional-fair"};
inline bool is_cell(const LinkOptions& link) { return link.scheduler == kSchedulers[1]; }

// The fixed delay to the receiver, half of the round trip unless it is said, and that of the way back.
inline Us forward_us(const FlowOptions& flow) {
  return flow.forward_ms ? us_from_ms(*flow.forward_ms) : us_from_ms(flow.mrtt_ms) / 2;
}
inline Us return_us(const FlowOptions& flow) {
  return flow.forward_ms ? us_from_ms(flow.mrtt_ms) - us_from_ms(*flow.forward_ms) : us_from_ms(flow.mrtt_ms) / 2;
}

// Odd and without a pattern, so that the flows' seeds lie far apart.
inline std::uint64_t seed_of_flow(const LinkOptions& link, std::size_t number) {
  return link.seed + number * 0x632BE59BD9B4E019ULL;
}

}  // namespace reinet

#endif
