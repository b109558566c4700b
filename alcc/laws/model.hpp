// SPDX-License-Identifier: Apache-2.0
//
// A small model as `reinet run` hands it over, in the text of the settings: it lives as long as the preload's own
// variables do, through exec, chroot and whoever closes descriptors. The launcher has checked the model's folder
// against its digests; here only what would not fit is refused. Base64 of, in little-endian:
//
//   8 bytes   "REINETM3"
//   u32       number, version and history of the feature set, head, packet_timed, rows of the normaliser, layers
//   u64       shortest period in ns
//   f64       calm in minimum RTTs; from which path on features see more room than the target leaves, in us
//   f64 x 4   for each row of the normaliser: count, mean, m2, minimum
//   layers    u32 inputs, u32 outputs, f32 inputs x outputs weights, f32 outputs biases
#ifndef REINET_ALCC_MODEL_HPP
#define REINET_ALCC_MODEL_HPP

#include <memory>
#include <string_view>

#include "core/period.h"
#include "core/states/heads.hpp"
#include "core/states/network.hpp"
#include "core/states/state.hpp"

namespace reinet::alcc {

struct Model {
  const FeatureSet* set;
  StateConfig config;
  Head head;
  reinet_period_config period;
  double calm_rtts;
  Network network;
};

// Returns the model that the text holds, null where it holds none that fits this program.
std::shared_ptr<const Model> parse_model(std::string_view text);

}  // namespace reinet::alcc

#endif
