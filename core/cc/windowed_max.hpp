// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_WINDOWED_MAX_HPP
#define REINET_WINDOWED_MAX_HPP

#include <cstdint>

namespace reinet {

// The maximum of a sliding window in constant space, nearly: Kathleen Nichols' three best values, each later than the
// one before, as in the kernel's lib/win_minmax.c. Time is whatever the caller counts.
class WindowedMax {
 public:
  void add(std::uint32_t window, std::uint32_t time, std::uint32_t value) {
    const Sample sample{time, value};
    if (value >= best_[0].value || time - best_[2].time > window) {
      reset(sample);
      return;
    }
    if (value >= best_[1].value)
      best_[2] = best_[1] = sample;
    else if (value >= best_[2].value)
      best_[2] = sample;
    expire(window, sample);
  }
  std::uint32_t value() const { return best_[0].value; }

 private:
  struct Sample {
    std::uint32_t time = 0;
    std::uint32_t value = 0;
  };

  void reset(const Sample& sample) { best_[0] = best_[1] = best_[2] = sample; }

  void expire(std::uint32_t window, const Sample& sample) {
    const std::uint32_t age = sample.time - best_[0].time;
    if (age > window) {  // the best is too old: the others move up
      best_[0] = best_[1];
      best_[1] = best_[2];
      best_[2] = sample;
      if (sample.time - best_[0].time > window) {
        best_[0] = best_[1];
        best_[1] = best_[2];
        best_[2] = sample;
      }
    } else if (best_[1].time == best_[0].time && age > window / 4) {
      best_[2] = best_[1] = sample;  // a quarter has passed without a second best
    } else if (best_[2].time == best_[1].time && age > window / 2) {
      best_[2] = sample;  // half has passed without a third
    }
  }

  Sample best_[3];
};

}  // namespace reinet

#endif
