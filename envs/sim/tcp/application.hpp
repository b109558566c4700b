// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_APPLICATION_HPP
#define REINET_APPLICATION_HPP

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/cc/clock.hpp"

namespace reinet {

// What an application does with its socket.
struct Writes {
  std::uint64_t total_bytes = 0;  // 0 = for ever, else rounded up to segments, or to objects
  double bytes_per_s = 0.0;       // 0 = all at once
  // Objects, each rounded up to segments and written at once, as a server answers one request after the other:
  std::uint64_t object_bytes = 0;  // 0 = one stream
  Us pause_us = 0;                 // from the last byte's acknowledgement to the next object
};

// What the application writes to its socket, in whole segments: all at once, at a rate, or object by object.
class Application {
 public:
  Application(const Writes& writes, std::uint32_t mss_bytes)
      : object_pkts_(segments(writes.object_bytes, mss_bytes)),
        total_pkts_(total_pkts(writes, mss_bytes)),
        segment_us_(writes.bytes_per_s > 0 ? mss_bytes * 1e6 / writes.bytes_per_s : 0.0),
        pause_us_(writes.pause_us),
        written_pkts_(segment_us_ > 0 || object_pkts_ ? 0 : total_pkts_) {}

  void start(Us now_us) {
    start_us_ = now_us;
    if (segment_us_ > 0 || object_pkts_) write(now_us);
  }

  // Returns the time of the next write, kNever if there is none.
  Us next_us() const { return next_us_; }
  void write(Us now_us) {
    if (object_pkts_) {
      written_pkts_ += object_pkts_;
      written_us_ = now_us;
      next_us_ = kNever;
      return;
    }
    const double segments = static_cast<double>(now_us - start_us_) / segment_us_;
    written_pkts_ = static_cast<std::uint32_t>(std::min<double>(segments + 1, total_pkts_));
    next_us_ = written_pkts_ == total_pkts_ ? kNever : start_us_ + static_cast<Us>(segment_us_ * written_pkts_) + 1;
  }

  // All below una has been acknowledged, some of it just now: the pause after an object begins with its last segment.
  void on_acknowledged(std::uint32_t una, Us now_us) {
    if (object_pkts_ && una == written_pkts_ && written_pkts_ != total_pkts_) next_us_ = now_us + pause_us_;
  }

  bool has(std::uint32_t seq) const { return seq < written_pkts_; }
  bool all_sent(std::uint32_t next_seq) const { return total_pkts_ != kForEver && next_seq >= total_pkts_; }

  // Of an application that writes objects: where the latest ends, and when it was written.
  bool has_objects() const { return object_pkts_ > 0; }
  std::uint32_t written_pkts() const { return written_pkts_; }
  Us written_us() const { return written_us_; }

 private:
  static constexpr std::uint32_t kForEver = std::numeric_limits<std::uint32_t>::max();

  static std::uint32_t segments(std::uint64_t bytes, std::uint32_t mss_bytes) {
    return static_cast<std::uint32_t>((bytes + mss_bytes - 1) / mss_bytes);
  }
  static std::uint32_t total_pkts(const Writes& writes, std::uint32_t mss_bytes) {
    if (!writes.total_bytes) return kForEver;
    if (!writes.object_bytes) return segments(writes.total_bytes, mss_bytes);
    const std::uint64_t objects = (writes.total_bytes + writes.object_bytes - 1) / writes.object_bytes;
    return static_cast<std::uint32_t>(objects * segments(writes.object_bytes, mss_bytes));
  }

  std::uint32_t object_pkts_;  // 0 = one stream
  std::uint32_t total_pkts_;
  double segment_us_;  // time that the application takes for a segment
  Us pause_us_;
  std::uint32_t written_pkts_;
  Us start_us_ = 0;
  Us written_us_ = 0;
  Us next_us_ = kNever;
};

}  // namespace reinet

#endif
