// SPDX-License-Identifier: Apache-2.0
#include "kshim/native/reader.hpp"

#include <bpf/libbpf.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "kshim/native/failure.hpp"
#include "kshim/native/silence.hpp"

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
    : object_(object), ledger_(object.max_flows()), reported_ns_(object.max_flows()) {
  records_.reset(ring_buffer__new(object.map_fd("reinet_records"), on_record, this, nullptr));
  if (!records_) throw Failure(errno, "open the ring buffer of records");
  if (!events) return;
  events_.reset(ring_buffer__new(object.map_fd("reinet_events"), on_event, this, nullptr));
  if (!events_) throw Failure(errno, "open the ring buffer of events");
}

int Reader::on_record(void* self, void* data, std::size_t) {
  static_cast<Reader*>(self)->ledger_.take(*static_cast<const reinet_flow_stats*>(data));
  return 0;
}

int Reader::on_event(void* self, void* data, std::size_t) {
  static_cast<Reader*>(self)->taken_events_.push_back(*static_cast<const reinet_event*>(data));
  return 0;
}

void Reader::scan(std::uint64_t now_ns) {
  for (std::uint32_t slot = 0; slot < object_.max_flows(); slot++) {
    const std::uint64_t cookie = load(object_.slots()[slot].cookie);
    const auto changed_hands = [&] { return ledger_.owner(slot) && ledger_.owner(slot) != cookie; };
    if (changed_hands()) {
      ring_buffer__consume(records_.get());  // a flow's CLOSED is sent before its slot changes hands
      if (changed_hands()) ledger_.close(slot, now_ns);
    }
    if (cookie && !ledger_.has_closed(slot, cookie)) report_silence(slot, cookie, now_ns);
  }
}

void Reader::report_silence(std::uint32_t slot, std::uint64_t cookie, std::uint64_t now_ns) {
  reinet_flow_stats record{};
  if (!find_silence(object_.slots()[slot], cookie, now_ns, reported_ns_[slot], object_.default_target_us(), record))
    return;
  reported_ns_[slot] = now_ns;
  record.slot = slot;
  ledger_.take(record);
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
    if (!ledger_.empty() || now_ns >= end_ns) break;
    const std::uint64_t until_ns = std::min(end_ns, scanned_ns_ + scan_interval_ns);
    const std::uint64_t wait_ms = (until_ns - now_ns + ns_per_ms - 1) / ns_per_ms;
    got = ring_buffer__poll(records_.get(), static_cast<int>(wait_ms));
    if (got == -EINTR) break;
    if (got < 0) throw Failure(-got, "wait for records");
  }
  return ledger_.give();
}

std::vector<reinet_event> Reader::take_events() {
  if (!events_) throw Failure(ENODATA, "read recorded ACKs: the shim was started without record_events");
  const int got = ring_buffer__consume(events_.get());
  if (got < 0) throw Failure(-got, "read the recorded ACKs");
  return std::exchange(taken_events_, {});
}

}  // namespace reinet
