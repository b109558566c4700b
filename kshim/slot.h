/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The memory that the BPF programs and the loader share, in plain C; both include this file.
 *
 * A flow owns one slot from its start to its end, and with it the cap of the same index (cap.h). Each kind of memory
 * has one writer: the kernel writes slots and counters, which user space can only map for reading; whoever decides
 * writes caps; the loader writes control. A slot is used again at once, so a cap names the flow it was meant for, and
 * the kernel obeys it only for that flow.
 *
 * A cap answers what a record said of the path. After an idle time above a quarter of the smoothed RTT the queue that
 * it was to shorten is gone, so from the restart to the end of that period no cap acts: the first window is the
 * congestion control's own. The lease that stands when that period's record goes out is void as well, until user space
 * writes another one, which it does when it has decided on the record: what is void is not renewed.
 */
#ifndef REINET_SLOT_H
#define REINET_SLOT_H

#include "core/cc/cap_limited.h"
#include "core/cc/outage.h"
#include "core/cc/withheld_window.h"
#include "core/flow_stats.h"
#include "core/period.h"
#include "kshim/cap.h"

#define REINET_CC_NAME_BYTES 16 /* TCP_CA_NAME_MAX, with the final zero */

/* Written by the kernel. Whole cache lines: the ACKs of two flows never write the same one. */
struct reinet_slot {
  reinet_u64 cookie;      /* owner, 0 = free */
  reinet_u32 sequence;    /* odd while period is being written */
  reinet_u32 outstanding; /* data awaits an ACK */
  reinet_u64 void_lease;  /* never obeyed: too far ahead, or it answers what was before an idle time or the owner */
  /* The programs' own: what a cap does to a window that follows ssthresh, and to a model of the path. */
  struct reinet_withheld_window withheld; /* in jiffies */
  reinet_u32 cap_limited_until;
  struct reinet_outage outage;
  struct reinet_period period;
} __attribute__((aligned(REINET_CACHE_LINE_BYTES)));

/* What happened to the flows since the shim was loaded: COUNTs, whose growth says something, and MOSTs, which grow to
 * the most that there was at the same time and stay there.  kind, field, meaning
 */
#define REINET_COUNTERS(X)                                                                       \
  X(COUNT, flows_chosen, "flows that were given a slot when they began")                         \
  X(COUNT, flows_adopted, "flows that were given a slot while they were open already")           \
  X(COUNT, flows_without_slot, "flows left alone because every slot was taken")                  \
  X(COUNT, flows_not_switched, "flows left alone because the kernel refused the wrapper")        \
  X(COUNT, flows_switched_back, "flows given back to their own congestion control while open")   \
  X(MOST, slots_used, "slots that have been in use at the same time, at most")                   \
  X(COUNT, leases_too_long, "caps not obeyed because their lease reached too far ahead")         \
  X(COUNT, answers_replaced, "losses whose wrapper the kernel had skipped, and was asked again") \
  X(COUNT, records_lost, "records dropped because the ring buffer was full")                     \
  X(COUNT, acks_lost, "recorded ACKs dropped because their ring buffer was full")

#define REINET_DECLARE_COUNTER(kind, name, meaning) reinet_u64 name;
/* Written by the kernel. */
struct reinet_counters {
  REINET_COUNTERS(REINET_DECLARE_COUNTER)
};
#undef REINET_DECLARE_COUNTER

/* Written by the loader, also another version's: nothing here ever moves, so that any can clear up after any other. */
struct reinet_control {
  char wrapper[REINET_CC_NAME_BYTES]; /* one of the wrappers, once they are registered; their names end alike */
  reinet_u32 leaving;                 /* asks the flows to go back to their own congestion control */
  reinet_u32 link; /* the BPF link that registers it, which goes with the shim; 0 = none yet, or an earlier version */
};

/* Tells whether a slot's owner may be held to this lease; its end is not looked at here. */
static inline int reinet_lease_void(reinet_u64 lease, reinet_u64 void_lease, const struct reinet_period* period) {
  return lease == void_lease || period->restarted;
}

/* Tells whether renewing a cap would bring back what is void. */
static inline int reinet_cap_void(const struct reinet_cap* cap, const struct reinet_slot* slot) {
  reinet_u64 lease = REINET_READ(cap->lease);

  return lease && lease == REINET_READ(slot->void_lease);
}

/* What can be wrapped. */
enum reinet_algorithm { REINET_CUBIC, REINET_RENO, REINET_BBR, REINET_ALGORITHMS };

/* One wrapped congestion control; both names empty where the host cannot wrap it. */
struct reinet_wrapped {
  char plain[REINET_CC_NAME_BYTES];   /* the kernel's own */
  char wrapper[REINET_CC_NAME_BYTES]; /* ours around it; the loader picks a name that is free */
};

/* What moves a period, as it is recorded for replay. */
enum reinet_event_kind { REINET_EVENT_ACK, REINET_EVENT_RESTART };

struct reinet_event {
  reinet_u64 cookie;
  reinet_u64 kind;       /* enum reinet_event_kind */
  struct reinet_ack ack; /* of a RESTART only time_ns counts */
};

/* What goes into the replay program and comes out of it: one event moves one period. */
struct reinet_replay {
  struct reinet_period period;
  struct reinet_event event;
  struct reinet_flow_stats record; /* filled when ended */
  reinet_u64 ended;
};

#endif
