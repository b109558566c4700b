// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_SCHEDULE_HPP
#define REINET_SCHEDULE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace reinet {

// The delivery opportunities of a trace that starts again at its last value, for ever.
class Schedule {
 public:
  // ms: non-decreasing, the last one above 0, alive as long as this.
  explicit Schedule(std::span<const std::uint32_t> ms) : ms_(ms) {}

  // Goes to the first opportunity after that time.
  void seek_after(std::uint64_t now_ms) {
    const std::uint64_t within = now_ms % loop_ms();
    loop_start_ms_ = now_ms - within;
    next_ = static_cast<std::size_t>(std::upper_bound(ms_.begin(), ms_.end(), within) - ms_.begin());
  }
  std::uint64_t next_ms() const { return loop_start_ms_ + ms_[next_]; }
  void advance() {
    if (++next_ == ms_.size()) {
      next_ = 0;
      loop_start_ms_ += loop_ms();
    }
  }
  void skip_until(std::uint64_t now_ms) {
    if (now_ms > next_ms() + kFarMs) return seek_after(now_ms);  // one by one it would take hours after years
    while (next_ms() <= now_ms) advance();
  }

  // Returns the opportunities at the time of the next one, itself included, up to the trace's end.
  std::uint32_t count_at_next() const {
    std::size_t end = next_ + 1;
    while (end < ms_.size() && ms_[end] == ms_[next_]) ++end;
    return static_cast<std::uint32_t>(end - next_);
  }

  // Returns the number of opportunities in [0, now_ms], from the trace's first start (envs/trace/counting.py does too).
  std::uint64_t count_until(std::uint64_t now_ms) const {
    const auto in_loop = std::upper_bound(ms_.begin(), ms_.end(), now_ms % loop_ms()) - ms_.begin();
    return now_ms / loop_ms() * ms_.size() + static_cast<std::uint64_t>(in_loop);
  }

 private:
  static constexpr std::uint64_t kFarMs = 10'000;  // nearer, steps take no longer than a search

  std::uint64_t loop_ms() const { return ms_.back(); }

  std::span<const std::uint32_t> ms_;
  std::size_t next_ = 0;
  std::uint64_t loop_start_ms_ = 0;
};

}  // namespace reinet

#endif
