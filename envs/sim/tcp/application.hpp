// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_APPLICATION_HPP
#define REINET_APPLICATION_HPP

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/cc/clock.hpp"

namespace reinet {

// What the application writes to its socket, in whole segments: all at once or at a rate, so much or for ever.
class Application {
 public:
  // total_bytes: 0 = for ever, else rounded up to segments. bytes_per_s: 0 = all at once.
  Application(std::uint64_t total_bytes, double bytes_per_s, std::uint32_t mss_bytes)
      : total_pkts_(total_bytes ? static_cast<std::uint32_t>((total_bytes + mss_bytes - 1) / mss_bytes) : kForEver),
        segment_us_(bytes_per_s > 0 ? mss_bytes * 1e6 / bytes_per_s : 0.0),
        written_pkts_(segment_us_ > 0 ? 0 : total_pkts_) {}

  void start(Us now_us) {
    start_us_ = now_us;
    if (segment_us_ > 0) write(now_us);
  }

  // Returns the time of the next write, kNever if there is none.
  Us next_us() const { return next_us_; }
  void write(Us now_us) {
    const double segments = static_cast<double>(now_us - start_us_) / segment_us_;
    written_pkts_ = static_cast<std::uint32_t>(std::min<double>(segments + 1, total_pkts_));
    next_us_ = written_pkts_ == total_pkts_ ? kNever : start_us_ + static_cast<Us>(segment_us_ * written_pkts_) + 1;
  }

  bool has(std::uint32_t seq) const { return seq < written_pkts_; }
  bool all_sent(std::uint32_t next_seq) const { return total_pkts_ != kForEver && next_seq >= total_pkts_; }

 private:
  static constexpr std::uint32_t kForEver = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t total_pkts_;
  double segment_us_;  // time that the application takes for a segment
  std::uint32_t written_pkts_;
  Us start_us_ = 0;
  Us next_us_ = kNever;
};

}  // namespace reinet

#endif
