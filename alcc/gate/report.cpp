// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/report.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "alcc/base/say.hpp"
#include "core/states/feature.hpp"

namespace reinet::alcc {

namespace {

// Into no file that somebody else's link leads to: a server may be root.
void append(const char* path, const void* data, std::size_t size) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, kFlags, 0644));
  if (fd < 0) return;
  write_or_drop(fd, data, size);
  syscall(SYS_close, fd);
}

// Whether it is memory for sums that nobody can take away: to touch what was cut off would end this process.
bool is_for_sums(int fd) {
  std::uint64_t magic = 0;
  struct stat file{};
  const long seals = syscall(SYS_fcntl, fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &file) == 0 &&
         file.st_size >= static_cast<off_t>(sizeof(AllSums)) &&
         syscall(SYS_pread64, fd, &magic, sizeof magic, 0) == sizeof magic && magic == kSumsMagic;
}

}  // namespace

void Report::share(const char* path) {
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0) return;
  if (is_for_sums(fd)) {
    void* pages = mmap(nullptr, sizeof(AllSums), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pages != MAP_FAILED) shared_ = static_cast<AllSums*>(pages);
  }
  syscall(SYS_close, fd);
}

Sums& Report::sums() {
  if (Sums* place = place_.load(std::memory_order_acquire)) return *place;
  Sums* taken = &own_;
  if (shared_) taken = &shared_->places[std::min<std::uint64_t>(shared_->taken++, kMostPlaces - 1)];
  Sums* other = nullptr;  // a thread that was first: a place stays empty
  return place_.compare_exchange_strong(other, taken) ? *taken : *other;
}

void Report::take(const reinet_flow_stats& record, std::uint32_t cap_pkts, std::uint32_t held_pkts,
                  const char* records_path) {
  Sums& s = sums();
  ++s.records;
  if (has_sample(record)) {
    ++s.decisions;
    if (cap_pkts) ++s.capped;
    const double newly_bytes = static_cast<double>(record.delivered_bytes);
    const double delay_us = static_cast<double>(record.rtt_mean_us) - record.min_rtt_us;
    const double beyond_pkts = cap_pkts && held_pkts > cap_pkts ? held_pkts - cap_pkts : 0;
    const double rate = static_cast<double>(record.delivery_rate_bytes_per_s);
    const double saved_us = rate > 0 ? beyond_pkts * record.mss_bytes / rate * 1e6 : 0;
    s.delivered_bytes += newly_bytes;
    s.delay_byte_us += newly_bytes * std::max(delay_us, 0.0);
    s.saved_byte_us += newly_bytes * std::min(saved_us, std::max(delay_us, 0.0));
  }
  if (*records_path) append(records_path, &record, sizeof record);
}

void Report::exempted(const char* reason) {
  ++sums().not_gated;
  const std::lock_guard guard(lock_);
  if (exemptions_.insert(reason).second) say("a connection is not gated: %s", reason);
}

void Report::renew() {
  new (&lock_) Lock;
  new (&own_) Sums;
  place_ = nullptr;
  exemptions_.clear();
}

}  // namespace reinet::alcc
