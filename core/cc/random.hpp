// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RANDOM_HPP
#define REINET_RANDOM_HPP

#include <cstdint>

namespace reinet {

// Steele, Lea and Flood's generator (2014), with their constants: small, quick, and good enough for jitter, losses and
// PIE's dice.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint32_t n) { return (next() >> 32) * n >> 32; }  // in [0, n)
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }   // in [0, 1)

 private:
  std::uint64_t state_;
};

}  // namespace reinet

#endif
