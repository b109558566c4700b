// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_SLIDING_MINIMUM_HPP
#define REINET_SLIDING_MINIMUM_HPP

#include <cstdint>
#include <deque>

#include "core/cc/clock.hpp"

namespace reinet {

// The minimum of a sliding window of time, exactly, where WindowedMax keeps three values: it holds each sample that no
// later one has undercut. The newest sample stays, however old.
class SlidingMinimum {
 public:
  void add(Us window_us, Us now_us, std::uint32_t value) {
    while (!kept_.empty() && kept_.back().value > value) kept_.pop_back();
    kept_.push_back({now_us, value});
    while (kept_.size() > 1 && kept_.front().time_us + window_us < now_us) kept_.pop_front();
  }
  void clear() { kept_.clear(); }
  std::uint32_t value() const { return kept_.empty() ? ~0U : kept_.front().value; }  // all ones before the first

 private:
  struct Sample {
    Us time_us;
    std::uint32_t value;
  };

  std::deque<Sample> kept_;  // values rise from the front on
};

// The same for maxima.
class SlidingMaximum {
 public:
  void add(Us window_us, Us now_us, std::uint32_t value) { filter_.add(window_us, now_us, ~value); }
  void clear() { filter_.clear(); }
  std::uint32_t value() const { return ~filter_.value(); }  // 0 before the first

 private:
  SlidingMinimum filter_;
};

}  // namespace reinet

#endif
