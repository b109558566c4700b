// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/report.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "alcc/base/say.hpp"
#include "alcc/gate/process.hpp"
#include "core/states/feature.hpp"

namespace reinet::alcc {

namespace {

constexpr std::size_t kRecordsPerWrite = 64;
constexpr int kMostTries = 100;  // a millisecond apart: nobody holds the lock for longer than a write takes

// Into no file that somebody else's link leads to: a server may be root when it ends.
void append(const char* path, const void* data, std::size_t size) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, kFlags, 0644));
  if (fd < 0) return;
  write_or_drop(fd, data, size);
  syscall(SYS_close, fd);
}

}  // namespace

void Report::take(const reinet_flow_stats& record, std::uint32_t cap_pkts, std::uint32_t held_pkts) {
  const std::lock_guard guard(lock_);
  ++records_;
  if (has_sample(record)) {
    ++decided_;
    if (cap_pkts) ++capped_;
    const double newly_bytes = static_cast<double>(record.delivered_bytes);
    const double delay_us = static_cast<double>(record.rtt_mean_us) - record.min_rtt_us;
    const double beyond_pkts = cap_pkts && held_pkts > cap_pkts ? held_pkts - cap_pkts : 0;
    const double rate = static_cast<double>(record.delivery_rate_bytes_per_s);
    const double saved_us = rate > 0 ? beyond_pkts * record.mss_bytes / rate * 1e6 : 0;
    delivered_bytes_ += newly_bytes;
    delay_byte_us_ += newly_bytes * std::max(delay_us, 0.0);
    saved_byte_us_ += newly_bytes * std::min(saved_us, std::max(delay_us, 0.0));
  }
  if (process().settings.records.empty()) return;
  unwritten_.push_back(record);
  if (unwritten_.size() >= kRecordsPerWrite) flush();
}

void Report::flush() {
  if (!unwritten_.empty())
    append(process().settings.records.c_str(), unwritten_.data(), unwritten_.size() * sizeof(reinet_flow_stats));
  unwritten_.clear();
}

void Report::exempted(const char* reason) {
  const std::lock_guard guard(lock_);
  ++not_gated_;
  if (exemptions_.insert(reason).second) say("a connection is not gated: %s", reason);
}

void Report::clear() {
  new (&lock_) Lock;
  flows = bytes = closings = openings = 0;
  records_ = decided_ = capped_ = not_gated_ = 0;
  delivered_bytes_ = delay_byte_us_ = saved_byte_us_ = 0;
  unwritten_.clear();
  exemptions_.clear();
}

void Report::write(const char* path) {
  std::unique_lock guard(lock_, std::try_to_lock);
  for (int tries = 0; !guard; ++tries) {  // without end where a handler that interrupted the owner ends the process
    if (tries == kMostTries) return;
    usleep(1000);
    guard.try_lock();
  }
  flush();
  if (!*path) return;
  char line[1024];
  const double weight = std::max(delivered_bytes_, 1.0) * 1000;
  const int size = snprintf(
      line, sizeof line,
      "{\"pid\": %d, \"flows\": %llu, \"bytes\": %llu, \"closings\": %llu, \"openings\": %llu, \"records\": %llu, "
      "\"decisions\": %llu, \"capped\": %llu, \"not_gated\": %llu, \"qdelay_mean_ms\": %.3f, \"qdelay_saved_ms\": "
      "%.3f}\n",
      static_cast<int>(getpid()), static_cast<unsigned long long>(flows), static_cast<unsigned long long>(bytes),
      static_cast<unsigned long long>(closings), static_cast<unsigned long long>(openings),
      static_cast<unsigned long long>(records_), static_cast<unsigned long long>(decided_),
      static_cast<unsigned long long>(capped_), static_cast<unsigned long long>(not_gated_), delay_byte_us_ / weight,
      saved_byte_us_ / weight);
  append(path, line, static_cast<std::size_t>(size));
}

}  // namespace reinet::alcc
