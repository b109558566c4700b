// SPDX-License-Identifier: Apache-2.0
//
// What the gate is asked to do, as `reinet run` puts it into the environment: REINET_ALCC="key=value key=value ...".
//
//   law      none | fixed:N | rule | rule:G | policy | daemon | copa | copa-default | verus | sprout
//                                              what decides; none only measures, policy is REINET_ALCC_MODEL's
//   daemon   PATH                              the socket of the daemon that decides
//   target   MIN_RTTS:EXTRA_US                 the RTT to stay below is MIN_RTTS x min RTT + EXTRA_US (core/target.py)
//   ports    80,443                            only connections with one of these at either end; all without the key
//   shadow   1                                 decide, count and gate nothing
//   always   1                                 cap before a queue was seen too: for tests and measurements
//   no_io_uring 1                               the C library's syscall() makes none
//   report   PATH                              the memory for the sums of processes (alcc/gate/sums.hpp)
//   records  PATH                              FlowStats records, as they come, are appended
#ifndef REINET_ALCC_SETTINGS_HPP
#define REINET_ALCC_SETTINGS_HPP

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "alcc/driver/driver.hpp"
#include "core/period.h"
#include "core/states/heads.hpp"

namespace reinet::alcc {

// alcc/laws/model.hpp, which few need to know
struct Model;
std::shared_ptr<const Model> parse_model(std::string_view text);
reinet_period_config period_of(const Model& model);

constexpr const char* kEnvironment = "REINET_ALCC";
constexpr const char* kModelEnvironment = "REINET_ALCC_MODEL";

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

namespace parsing {

// Whatever the program's locale writes for a decimal point.
inline std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0)) return std::nullopt;
  return value;
}

// Returns the parts between the separators.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    if (const std::string_view part = text.substr(0, at); !part.empty()) parts.push_back(part);
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

inline bool law(std::string_view text, Settings& settings) {
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const double value = colon == std::string_view::npos ? -1 : number(text.substr(colon + 1)).value_or(-1);
  if (kind == "none") {
    settings.law = Settings::Law::none;
  } else if (kind == "fixed" && value >= kMinCapPkts && value <= kMaxCapPkts) {
    settings.law = Settings::Law::fixed;
    settings.fixed_pkts = static_cast<std::uint32_t>(value);
  } else if (text == "rule" || (kind == "rule" && value > 0)) {
    settings.law = Settings::Law::rule;
    if (colon != std::string_view::npos) settings.gain = value;
  } else if (text == "daemon") {
    settings.law = Settings::Law::daemon;
  } else if (text == "policy") {
    const char* model = std::getenv(kModelEnvironment);
    settings.law = Settings::Law::policy;
    settings.model = model ? parse_model(model) : nullptr;
    if (!settings.model) return false;
    settings.period = period_of(*settings.model);
  } else {
    const auto names = law_names();
    const auto named = std::find(names.begin(), names.end(), text);
    if (named == names.end()) return false;
    settings.law = Settings::Law::published;
    settings.published = *named;
  }
  return true;
}

inline bool target(std::string_view text, Settings& settings) {
  const auto parts = split(text, ':');
  if (parts.size() != 2) return false;
  const auto min_rtts = number(parts[0]), extra_us = number(parts[1]);
  if (!min_rtts || !extra_us) return false;
  settings.target_min_rtts = *min_rtts;
  settings.target_extra_us = static_cast<std::uint32_t>(*extra_us);
  return true;
}

inline bool ports(std::string_view text, Settings& settings) {
  for (const std::string_view part : split(text, ',')) {
    const auto port = number(part);
    if (!port || *port < 1 || *port > 65535) return false;
    settings.ports.push_back(static_cast<std::uint16_t>(*port));
  }
  return true;
}

}  // namespace parsing

// Returns what the text says, nothing when it makes no sense.
inline std::optional<Settings> parse_settings(std::string_view text) {
  Settings settings;
  for (const std::string_view pair : parsing::split(text, ' ')) {
    const std::size_t at = pair.find('=');
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view key = pair.substr(0, at), value = pair.substr(at + 1);
    bool good = true;
    if (key == "law")
      good = parsing::law(value, settings);
    else if (key == "target")
      good = parsing::target(value, settings);
    else if (key == "ports")
      good = parsing::ports(value, settings);
    else if (key == "shadow")
      settings.shadow = value == "1";
    else if (key == "always")
      settings.always = value == "1";
    else if (key == "no_io_uring")
      settings.no_io_uring = value == "1";
    else if (key == "daemon")
      settings.daemon = value;
    else if (key == "report")
      settings.report = value;
    else if (key == "records")
      settings.records = value;
    else
      good = false;
    if (!good) return std::nullopt;
  }
  return settings;
}

}  // namespace reinet::alcc

#endif
