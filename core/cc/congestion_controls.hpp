// SPDX-License-Identifier: Apache-2.0
//
// Every congestion control that the simulator has: the one list, here and in Python. A new one is its header and its
// line.
#ifndef REINET_CONGESTION_CONTROLS_HPP
#define REINET_CONGESTION_CONTROLS_HPP

#include <array>
#include <string_view>

#include "core/cc/kernel/bbr.hpp"
#include "core/cc/kernel/cubic.hpp"
#include "core/cc/kernel/illinois.hpp"
#include "core/cc/kernel/reno.hpp"
#include "core/cc/kernel/vegas.hpp"
#include "core/cc/kernel/westwood.hpp"
#include "core/cc/published/allegro.hpp"
#include "core/cc/published/c2tcp.hpp"
#include "core/cc/published/clean_slate.hpp"
#include "core/cc/published/copa.hpp"
#include "core/cc/published/ledbat.hpp"
#include "core/cc/published/sprout.hpp"
#include "core/cc/published/verus.hpp"
#include "core/cc/published/vivace.hpp"

namespace reinet {

template <CongestionControl... Controls>
struct ControlList {};

// clang-format off
using CongestionControls = ControlList<
    Reno,
    Cubic,
    Bbr,
    Westwood,
    Illinois,
    Vegas,
    Ledbat,
    C2tcp,
    Copa,
    CopaDefault,
    Allegro,
    Vivace,
    Verus,
    Sprout,
    CleanSlate
>;
// clang-format on

template <class... Controls>
constexpr auto names_of(ControlList<Controls...>) {
  return std::array{Controls::kName...};
}
constexpr auto congestion_control_names() { return names_of(CongestionControls{}); }

// Calls use.operator()<Control>() for the control of that name; returns false if there is none.
template <class Use, class... Controls>
bool with_named(std::string_view name, Use&& use, ControlList<Controls...>) {
  return ((name == Controls::kName && (use.template operator()<Controls>(), true)) || ...);
}
template <class Use>
bool with_congestion_control(std::string_view name, Use&& use) {
  return with_named(name, use, CongestionControls{});
}

}  // namespace reinet

#endif
