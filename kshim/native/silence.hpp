// SPDX-License-Identifier: Apache-2.0
// Silences, which no ACK reports: found by looking at a slot that the kernel goes on writing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kshim/slot.h"

namespace reinet {

// Fills the record of a flow's silence, if there is one to report. cookie: the slot's owner when the caller looked; the
// slot may have been given back since, or to another flow. reported_ns: when this slot's last silence was reported.
inline bool find_silence(const reinet_slot& slot, const reinet_cap& cap, std::uint64_t cookie, std::uint64_t now_ns,
                         std::uint64_t reported_ns, std::uint32_t default_target_us, reinet_flow_stats& record) {
  const std::uint32_t sequence = __atomic_load_n(&slot.sequence, __ATOMIC_ACQUIRE);
  reinet_period period = slot.period;
  const int outstanding = static_cast<int>(slot.outstanding);
  const std::uint64_t owner = __atomic_load_n(&slot.cookie, __ATOMIC_RELAXED);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (sequence & 1 || __atomic_load_n(&slot.sequence, __ATOMIC_RELAXED) != sequence) return false;  // an ACK is taken
  if (!owner || owner != cookie) return false;  // the flow ended meanwhile

  period.last_sign_ns = std::max(period.last_sign_ns, reported_ns);
  if (!reinet_period_on_tick(&period, now_ns, outstanding, &record)) return false;
  std::uint64_t lease = 0;
  if (!reinet_cap_read(&cap, cookie, &lease, &record.target_us)) {
    lease = 0;
    record.target_us = default_target_us;
  }
  record.cookie = cookie;
  const std::uint64_t void_lease = REINET_READ(slot.void_lease);
  record.cap_pkts = reinet_lease_void(lease, void_lease, &period) ? 0 : reinet_lease_cap_pkts(lease, now_ns);
  return true;
}

}  // namespace reinet
