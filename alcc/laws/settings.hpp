// SPDX-License-Identifier: Apache-2.0
//
// What the gate is asked to do, as `reinet run` puts it into the environment: REINET_ALCC="key=value key=value ...".
//
//   law      none | fixed:N | rule | rule:G | policy | daemon | copa | copa-default | verus | sprout
//                                              what decides; none only measures, policy is a model
//   model    BASE64                            that model (alcc/laws/model.hpp)
//   daemon   PATH                              the socket of the daemon that decides
//   target   MIN_RTTS:EXTRA_US                 the RTT to stay below is MIN_RTTS x min RTT + EXTRA_US (core/target.py)
//   ports    80,443                            only connections with one of these at either end; all without the key
//   shadow   0 | 1                             decide, count and gate nothing
//   always   0 | 1                             cap before a queue was seen too: for tests and measurements
//   shared_uplink 0 | 1                         all connections wait in one queue, whoever their peers are
//   no_io_uring 0 | 1                           the C library's syscall() makes none
//   report   PATH                              the memory for the sums of processes (alcc/gate/sums.hpp)
//   records  PATH                              FlowStats records, as they come, are appended
#ifndef REINET_ALCC_SETTINGS_HPP
#define REINET_ALCC_SETTINGS_HPP

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/period.h"
#include "core/states/heads.hpp"

namespace reinet::alcc {

struct Model;  // alcc/laws/model.hpp, which few need to know

constexpr const char* kEnvironment = "REINET_ALCC";

struct Settings {
  enum class Law { none, fixed, rule, policy, daemon, published };

  Law law = Law::none;
  std::uint32_t fixed_pkts = 0;
  double gain = kRuleGain;
  std::shared_ptr<const Model> model;  // of the law policy
  std::string_view published;          // the name of such a law, one of law_names()
  reinet_period_config period = {REINET_MIN_PERIOD_NS, 1, 0};
  double target_min_rtts = 0.0;
  std::uint32_t target_extra_us = 0;
  std::vector<std::uint16_t> ports;
  bool shadow = false;
  bool always = false;
  bool shared_uplink = false;
  bool no_io_uring = false;
  std::string daemon, report, records;

  // Whether caps of this process may bind.
  bool gates() const { return law != Law::none && !shadow; }
  // Whether a connection that the kernel caps is left alone: two must not cap it, nor may a daemon that caps it there
  // hear of it a second time. Who only watches measures it as the kernel's shim does.
  bool leaves_capped() const { return gates() || law == Law::daemon; }
  // Whether caps bind from a connection's first packet on.
  bool binds_at_once() const { return gates() && (always || law == Law::published); }
};

// Returns what the text says, nothing when it makes no sense.
std::optional<Settings> parse_settings(std::string_view text);

}  // namespace reinet::alcc

#endif
