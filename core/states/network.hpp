// SPDX-License-Identifier: Apache-2.0
//
// A trained actor as plain layers: ReLU stands between them, tanh after the last (agents/model/mlp.py). No library for
// inference gets into other people's processes for a few thousand multiplications, nor between a record and its cap.
#ifndef REINET_NETWORK_HPP
#define REINET_NETWORK_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace reinet {

// What lies on a stack twice; the paper's network, which is too large for a process anyway, has 1000.
constexpr std::size_t kMostUnits = 1024;

class Network {
 public:
  // weights: inputs x outputs, one input's after the other, so that the loop over outputs needs no sum across lanes.
  struct Layer {
    std::size_t inputs, outputs;
    std::vector<float> weights, bias;
  };

  Network() = default;
  // Each layer takes what the one before gives, the last gives one number; none has more than kMostUnits.
  explicit Network(std::vector<Layer> layers) : layers_(std::move(layers)) {}

  std::size_t inputs() const { return layers_.empty() ? 0 : layers_.front().inputs; }

  // Returns the action in [-1, 1] for a state of inputs() values.
  float act(const float* state) const {
    std::array<float, kMostUnits> x, y;
    std::copy_n(state, inputs(), x.begin());
    for (const Layer& layer : layers_) {
      std::copy(layer.bias.begin(), layer.bias.end(), y.begin());
      const float* w = layer.weights.data();
      for (std::size_t i = 0; i < layer.inputs; ++i, w += layer.outputs)
        for (std::size_t o = 0; o < layer.outputs; ++o) y[o] += w[o] * x[i];
      const bool last = &layer == &layers_.back();
      // The comparison keeps what is no number: nobody takes it for an action.
      for (std::size_t o = 0; o < layer.outputs; ++o) x[o] = last ? std::tanh(y[o]) : (y[o] < 0.0F ? 0.0F : y[o]);
    }
    return x[0];
  }

 private:
  std::vector<Layer> layers_;
};

}  // namespace reinet

#endif
