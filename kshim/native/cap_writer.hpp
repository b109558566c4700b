// SPDX-License-Identifier: Apache-2.0
// User space's side of cap.h: the only writer of a slot's cap.
#pragma once

#include <atomic>
#include <cstdint>

#include "kshim/cap.h"

namespace reinet {

template <typename T>
void store(T& shared, T value) {
  __atomic_store_n(&shared, value, __ATOMIC_RELAXED);
}

// One thread writes. Renewing a flow's own cap is one store; another flow's is written under the sequence. That is odd
// where a writer was killed in the middle; then nothing that stands there counts as written for anybody.
inline void write_cap(reinet_cap& cap, std::uint64_t cookie, std::uint64_t expires_ns, std::uint32_t cap_pkts,
                      std::uint32_t target_us) {
  const std::uint64_t lease = reinet_lease(expires_ns, cap_pkts);
  const bool changes_hands = cap.cap_cookie != cookie || cap.sequence & 1;
  const std::uint32_t begun = cap.sequence | 1;
  if (changes_hands) {
    store(cap.sequence, begun);
    std::atomic_thread_fence(std::memory_order_release);
    store(cap.cap_cookie, cookie);
  }
  store(cap.target_us, target_us);
  store(cap.lease, lease);
  if (changes_hands) __atomic_store_n(&cap.sequence, begun + 1, __ATOMIC_RELEASE);
}

inline void lift_cap(reinet_cap& cap, std::uint64_t cookie) {
  if (cap.cap_cookie == cookie) store(cap.lease, std::uint64_t{0});
}

}  // namespace reinet
