// SPDX-License-Identifier: Apache-2.0
#include "alcc/laws/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "alcc/driver/driver.hpp"
#include "alcc/laws/model.hpp"

namespace reinet::alcc {

namespace {

// Whatever the program's locale writes for a decimal point.
std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0 && std::isfinite(value)))
    return std::nullopt;
  return value;
}

// Returns the parts between the separators.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    if (const std::string_view part = text.substr(0, at); !part.empty()) parts.push_back(part);
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool flag(std::string_view text, bool& value) {
  value = text == "1";
  return value || text == "0";
}

bool law(std::string_view text, Settings& settings) {
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
    settings.law = Settings::Law::policy;
  } else {
    const auto names = law_names();
    const auto named = std::find(names.begin(), names.end(), text);
    if (named == names.end()) return false;
    settings.law = Settings::Law::published;
    settings.published = *named;
  }
  return true;
}

bool model(std::string_view text, Settings& settings) {
  settings.model = parse_model(text);
  if (!settings.model) return false;
  settings.period = settings.model->period;
  return true;
}

bool target(std::string_view text, Settings& settings) {
  const auto parts = split(text, ':');
  if (parts.size() != 2) return false;
  const auto min_rtts = number(parts[0]), extra_us = number(parts[1]);
  if (!min_rtts || !extra_us || *extra_us > ~0U) return false;
  settings.target_min_rtts = *min_rtts;
  settings.target_extra_us = static_cast<std::uint32_t>(*extra_us);
  return true;
}

bool ports(std::string_view text, Settings& settings) {
  for (const std::string_view part : split(text, ',')) {
    const auto port = number(part);
    if (!port || *port < 1 || *port > 65535 || *port != std::floor(*port)) return false;
    settings.ports.push_back(static_cast<std::uint16_t>(*port));
  }
  return true;
}

}  // namespace

std::optional<Settings> parse_settings(std::string_view text) {
  Settings settings;
  for (const std::string_view pair : split(text, ' ')) {
    const std::size_t at = pair.find('=');
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view key = pair.substr(0, at), value = pair.substr(at + 1);
    bool good = true;
    if (key == "law")
      good = law(value, settings);
    else if (key == "model")
      good = model(value, settings);
    else if (key == "target")
      good = target(value, settings);
    else if (key == "ports")
      good = ports(value, settings);
    else if (key == "shadow")
      good = flag(value, settings.shadow);
    else if (key == "always")
      good = flag(value, settings.always);
    else if (key == "shared_uplink")
      good = flag(value, settings.shared_uplink);
    else if (key == "no_io_uring")
      good = flag(value, settings.no_io_uring);
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
  if ((settings.law == Settings::Law::policy) != static_cast<bool>(settings.model)) return std::nullopt;
  return settings;
}

}  // namespace reinet::alcc
