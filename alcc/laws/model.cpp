// SPDX-License-Identifier: Apache-2.0
#include "alcc/laws/model.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/states/calm.hpp"

namespace reinet::alcc {

namespace {

// Returns the bytes; empty for a text that is no base64.
std::string base64(std::string_view text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int held = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (const char c : text) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) return {};
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<char>(bits >> held & 0xFF));
  }
  return bytes;
}

// Takes values off the front of some bytes; once there are too few it has failed and gives zeros.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : left_(bytes) {}

  template <class T>
  T next() {
    T value{};
    if (!has(sizeof value)) return value;
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::vector<float> floats(std::size_t count) {
    std::vector<float> values;
    if (count > left_.size() / sizeof(float) || !has(count * sizeof(float))) {
      failed_ = true;
      return values;
    }
    values.resize(count);
    std::memcpy(values.data(), left_.data(), count * sizeof(float));
    left_.remove_prefix(count * sizeof(float));
    for (const float value : values) failed_ = failed_ || !std::isfinite(value);
    return values;
  }
  bool failed() const { return failed_; }
  bool ended() const { return !failed_ && left_.empty(); }

 private:
  bool has(std::size_t size) {
    failed_ = failed_ || size > left_.size();
    return !failed_;
  }

  std::string_view left_;
  bool failed_ = false;
};

}  // namespace

std::shared_ptr<const Model> parse_model(std::string_view text) {
  const std::string content = base64(text);
  Bytes bytes(content);
  if (bytes.next<std::uint64_t>() != 0x334D54454E494552) return nullptr;  // "REINETM3"
  const auto number = bytes.next<std::uint32_t>(), version = bytes.next<std::uint32_t>();
  const auto history = bytes.next<std::uint32_t>(), head = bytes.next<std::uint32_t>();
  const auto packet_timed = bytes.next<std::uint32_t>(), rows = bytes.next<std::uint32_t>();
  const auto layers = bytes.next<std::uint32_t>();
  const auto min_period_ns = bytes.next<std::uint64_t>();
  const auto calm_rtts = bytes.next<double>(), room_beyond_us = bytes.next<double>();
  if (bytes.failed() || number >= kFeatureSets.size() || head >= kHeadNames.size() || packet_timed > 1) return nullptr;
  const FeatureSet& set = kFeatureSets[number];
  if (static_cast<std::uint32_t>(set.version) != version || set.history != history || set.inputs.size() != rows)
    return nullptr;
  if (min_period_ns == 0 || min_period_ns > REINET_NS_PER_S || set.state_size() > kMostUnits) return nullptr;
  if (!(calm_rtts >= 0.0 && calm_rtts <= kMostCalmRtts)) return nullptr;
  if (!(room_beyond_us >= 0.0)) return nullptr;
  NormaliserTable table(rows);
  for (InputStatistics& row : table) row = bytes.next<InputStatistics>();
  std::vector<Network::Layer> network;
  std::size_t inputs = set.state_size();
  for (std::uint32_t i = 0; i < layers && !bytes.failed(); ++i) {
    Network::Layer layer{bytes.next<std::uint32_t>(), bytes.next<std::uint32_t>(), {}, {}};
    if (layer.inputs != inputs || layer.outputs == 0 || layer.outputs > kMostUnits) return nullptr;
    layer.weights = bytes.floats(layer.inputs * layer.outputs);
    layer.bias = bytes.floats(layer.outputs);
    inputs = layer.outputs;
    network.push_back(std::move(layer));
  }
  if (!bytes.ended() || network.empty() || inputs != 1) return nullptr;
  return std::make_shared<const Model>(Model{&set,
                                             state_config(set, table, RewardKind::deepcc, 0.0, room_beyond_us),
                                             static_cast<Head>(head),
                                             {min_period_ns, packet_timed, 0},
                                             calm_rtts,
                                             Network(std::move(network))});
}

}  // namespace reinet::alcc
