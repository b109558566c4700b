/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The cap of a slot: how user space says it, and how the kernel and the reader understand it. Plain C; BPF and C++
 * include this file. Caps lie in memory of their own, the only one that user space writes: a decision process that went
 * mad can write caps there and nothing else, so whatever it writes, the kernel's own limits are below.
 *
 * The cap and the time until which it holds are one 64-bit word, the lease, so that nobody ever sees one without the
 * other, whatever the machine does to the order of loads and stores:
 *
 *   bits 63..20   end of the lease: CLOCK_MONOTONIC in units of 2^16 ns (65 us), which last 36 years
 *   bits 19..0    the cap in packets, 0 = none
 *
 * The lease counts only for the flow that cap_cookie names. Renewing one's own is a single store. When the slot changes
 * hands, the writer makes the sequence odd, writes cookie, target and lease, and makes it even again; a reader that
 * finds it odd, or changed across its loads, knows of no cap: the new owner has not been given one yet. Without that, a
 * weakly ordered machine may answer the loads of cookie and lease from before and after the change, and on any machine
 * a cap that comes too late for a flow that ended meets the cookie of the next flow in its slot.
 *
 * A lease ends REINET_LONGEST_LEASE_NS after it was written, at the latest. One that reaches further ahead is a mistake
 * (a wrong unit, a clock of another kind): it counts as none, and the kernel remembers it, lest it begin to act when
 * its end comes near. It is not shortened instead: the kernel does not know when a word of memory was written, so a
 * second from the first look would hold longer than a second from the writing, and a mistake is better without a cap.
 *
 * A cap below REINET_MIN_CAP_PKTS acts as that many packets.
 */
#ifndef REINET_CAP_H
#define REINET_CAP_H

#include "core/flow_stats.h"
#include "core/states/cap_limits.h"

#define REINET_CACHE_LINE_BYTES 64
#define REINET_LONGEST_LEASE_NS 1000000000ULL /* 1 s: after kill -9 no cap acts for longer */
#define REINET_MOST_CAP_PKTS 0xfffffU         /* 1.5 GB in flight, more than any socket buffer */
#define REINET_LEASE_END_SHIFT 20
#define REINET_LEASE_UNIT_SHIFT 16

/* Written by user space; in a cache line of its own, so that writing one flow's cap does not slow another's ACKs. */
struct reinet_cap {
  reinet_u64 cap_cookie; /* the flow that the rest is meant for */
  reinet_u64 lease;      /* cap and end, as above */
  reinet_u32 target_us;  /* copied into the flow's records; outlives the lease */
  reinet_u32 sequence;   /* odd while the cap changes hands */
} __attribute__((aligned(REINET_CACHE_LINE_BYTES)));

/* A cap beyond what fits is the largest that does, which no socket buffer lets a flow reach. */
static inline reinet_u64 reinet_lease(reinet_u64 expires_ns, reinet_u32 cap_pkts) {
  if (cap_pkts > REINET_MOST_CAP_PKTS) cap_pkts = REINET_MOST_CAP_PKTS;
  return (expires_ns >> REINET_LEASE_UNIT_SHIFT) << REINET_LEASE_END_SHIFT | cap_pkts;
}

static inline reinet_u64 reinet_lease_end_ns(reinet_u64 lease) {
  return lease >> REINET_LEASE_END_SHIFT << REINET_LEASE_UNIT_SHIFT;
}

static inline int reinet_lease_too_long(reinet_u64 lease, reinet_u64 now_ns) {
  return reinet_lease_end_ns(lease) > now_ns + REINET_LONGEST_LEASE_NS;
}

/* Returns the cap in force, in packets; 0 = none. */
static inline reinet_u32 reinet_lease_cap_pkts(reinet_u64 lease, reinet_u64 now_ns) {
  reinet_u32 cap_pkts = (reinet_u32)(lease & REINET_MOST_CAP_PKTS);

  if (now_ns >= reinet_lease_end_ns(lease) || reinet_lease_too_long(lease, now_ns)) return 0;
  return cap_pkts && cap_pkts < REINET_MIN_CAP_PKTS ? REINET_MIN_CAP_PKTS : cap_pkts;
}

#ifdef __bpf__
#define REINET_READ(x) (*(const volatile __typeof__(x)*)&(x))
/* BPF has no fences, but an atomic operation whose result is used is a full barrier. */
static inline void reinet_read_barrier(void) {
  reinet_u64 nothing = 0, before = __sync_fetch_and_add(&nothing, 0);

  __asm__ volatile("" : : "r"(before) : "memory");
}
#else
#define REINET_READ(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
static inline void reinet_read_barrier(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
#endif

/* Returns 1 and fills lease and target_us where there are any for the flow named by cookie, else 0. */
static inline int reinet_cap_read(const struct reinet_cap* cap, reinet_u64 cookie, reinet_u64* lease,
                                  reinet_u32* target_us) {
  reinet_u32 sequence = REINET_READ(cap->sequence);
  reinet_u64 named;

  reinet_read_barrier();
  named = REINET_READ(cap->cap_cookie);
  *lease = REINET_READ(cap->lease);
  *target_us = REINET_READ(cap->target_us);
  reinet_read_barrier();
  return !(sequence & 1) && REINET_READ(cap->sequence) == sequence && named == cookie;
}

#endif
