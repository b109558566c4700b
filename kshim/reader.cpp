// SPDX-License-Identifier: Apache-2.0
#include "kshim/reader.hpp"

#include <bpf/libbpf.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <utility>

#include "kshim/failure.hpp"

namespace reinet {

namespace {

// A silence is reported at most a tenth late. A scan of 4096 slots touches one cache line each, about 40 us.
constexpr std::uint64_t scan_interval_ns = REINET_SILENCE_NS / 10;
constexpr std::uint64_t ns_per_ms = 1'000'000;

std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * REINET_NS_PER_S + static_cast<std::uint64_t>(now.tv_nsec);
}

template <typename T>
T load(const T& shared) {
  return __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
}

}  // namespace

void Reader::CloseRing::operator()(ring_buffer* ring) const { ring_buffer__free(ring); }

Reader::Reader(const Object& object, bool events)
    : object_(object), owner_(object.max_flows()), reported_ns_(object.max_flows()) {
  records_.reset(ring_buffer__new(object.map_fd("reinet_records"), on_record, this, nullptr));
  if (!records_) throw Failure(errno, "open the ring buffer of records");
  if (!events) return;
  events_.reset(ring_buffer__new(object.map_fd("reinet_events"), on_event, this, nullptr));
  if (!events_) throw Failure(errno, "open the ring buffer of events");
}

int Reader::on_record(void* self, void* data, std::size_t) {
  static_cast<Reader*>(self)->take(*static_cast<const reinet_flow_stats*>(data));
  return 0;
}

int Reader::on_event(void* self, void* data, std::size_t) {
  static_cast<Reader*>(self)->taken_events_.push_back(*static_cast<const reinet_event*>(data));
  return 0;
}

void Reader::take(const reinet_flow_stats& record) {
  const bool closed = record.flags & REINET_FLAG_CLOSED;
  if (closed && owner_[record.slot] != record.cookie) return;  // nobody heard of it, or heard that it closed
  if (owner_[record.slot] != record.cookie) close_flow(record.slot, record.time_ns);
  owner_[record.slot] = closed ? 0 : record.cookie;
  taken_.push_back(record);
}

void Reader::close_flow(std::uint32_t slot, std::uint64_t now_ns) {
  if (!owner_[slot]) return;
  reinet_flow_stats record{};
  record.cookie = std::exchange(owner_[slot], 0);
  record.slot = slot;
  record.time_ns = now_ns;
  record.flags = REINET_FLAG_CLOSED;
  taken_.push_back(record);
}

void Reader::scan(std::uint64_t now_ns) {
  for (std::uint32_t slot = 0; slot < object_.max_flows(); slot++) {
    const std::uint64_t cookie = load(object_.slots()[slot].cookie);
    if (owner_[slot] && owner_[slot] != cookie) {
      ring_buffer__consume(records_.get());  // a flow's CLOSED is sent before its slot changes hands
      if (owner_[slot] && owner_[slot] != cookie) close_flow(slot, now_ns);
    }
    if (cookie) report_silence(slot, now_ns);
  }
}

void Reader::report_silence(std::uint32_t index, std::uint64_t now_ns) {
  const reinet_slot& slot = object_.slots()[index];
  const std::uint32_t sequence = load(slot.sequence);
  reinet_period period = slot.period;
  const int outstanding = static_cast<int>(slot.outstanding);
  const std::uint64_t cookie = slot.cookie;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (sequence & 1 || load(slot.sequence) != sequence) return;  // an ACK is being taken: no silence

  reinet_flow_stats record{};
  period.last_sign_ns = std::max(period.last_sign_ns, reported_ns_[index]);
  if (!reinet_period_on_tick(&period, now_ns, outstanding, &record)) return;
  reported_ns_[index] = now_ns;
  record.cookie = cookie;
  record.slot = index;
  if (load(slot.cap.cap_cookie) == cookie) {
    record.target_us = slot.cap.target_us;
    record.cap_pkts = now_ns < slot.cap.expires_ns ? slot.cap.cap_pkts : 0;
  } else {
    record.target_us = object_.default_target_us();
  }
  take(record);
}

std::vector<reinet_flow_stats> Reader::poll(int timeout_ms) {
  const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(std::max(timeout_ms, 0)) * ns_per_ms;
  for (;;) {
    int got = ring_buffer__consume(records_.get());
    if (got < 0) throw Failure(-got, "read the records");
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns - scanned_ns_ >= scan_interval_ns) {
      scan(now_ns);
      scanned_ns_ = now_ns;
    }
    if (!taken_.empty() || now_ns >= end_ns) break;
    const std::uint64_t until_ns = std::min(end_ns, scanned_ns_ + scan_interval_ns);
    const std::uint64_t wait_ms = (until_ns - now_ns + ns_per_ms - 1) / ns_per_ms;
    got = ring_buffer__poll(records_.get(), static_cast<int>(wait_ms));
    if (got == -EINTR) break;
    if (got < 0) throw Failure(-got, "wait for records");
  }
  return std::exchange(taken_, {});
}

std::vector<reinet_event> Reader::take_events() {
  if (!events_) throw Failure(ENODATA, "read recorded ACKs: the shim was started without record_events");
  const int got = ring_buffer__consume(events_.get());
  if (got < 0) throw Failure(-got, "read the recorded ACKs");
  return std::exchange(taken_events_, {});
}

}  // namespace reinet
