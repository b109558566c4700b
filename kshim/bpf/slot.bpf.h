/* SPDX-License-Identifier: GPL-2.0-only
 *
 * A flow's slot: how it is found, how its owner writes it, and how records leave it.
 */
#ifndef REINET_SLOT_BPF_H
#define REINET_SLOT_BPF_H

#include "kshim/bpf/maps.bpf.h"

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

static struct reinet_control *control(void) {
  __u32 zero = 0;
  return bpf_map_lookup_elem(&reinet_control, &zero);
}

static bool asked_to_leave(void) {
  struct reinet_control *c = control();
  return c && READ_ONCE(c->leaving);
}

static struct reinet_counters *counters(void) {
  __u32 zero = 0;
  return bpf_map_lookup_elem(&reinet_counters, &zero);
}

#define COUNT(field)                                                                                                   \
  do {                                                                                                                 \
    struct reinet_counters *c_ = counters();                                                                           \
    if (c_)                                                                                                            \
      __sync_fetch_and_add(&c_->field, 1);                                                                             \
  } while (0)

static struct reinet_slot *slot_of(struct sock *sk, __u32 *index) {
  __u32 *stored = bpf_sk_storage_get(&reinet_flows, sk, 0, 0);

  if (!stored)
    return NULL;
  *index = *stored;
  return bpf_map_lookup_elem(&reinet_slots, index);
}

/* The reader copies a period without a lock; an odd or changed sequence tells it to look again later. An atomic
 * operation whose result is used is a full barrier.
 */
static void move_sequence(struct reinet_slot *slot) {
  __u32 before = __sync_fetch_and_add(&slot->sequence, 1);

  barrier_var(before);
}

static void write_begin(struct reinet_slot *slot) { move_sequence(slot); }

static void write_end(struct reinet_slot *slot) { move_sequence(slot); }

static void send_record(const struct reinet_flow_stats *record) {
  if (bpf_ringbuf_output(&reinet_records, (void *)record, sizeof(*record), 0))
    COUNT(records_lost);
}

static void record_event(const struct reinet_slot *slot, enum reinet_event_kind kind, const struct reinet_ack *ack) {
  struct reinet_event *event;

  if (!record_events)
    return;
  event = bpf_ringbuf_reserve(&reinet_events, sizeof(*event), 0);
  if (!event) {
    COUNT(acks_lost);
    return;
  }
  event->cookie = slot->cookie;
  event->kind = kind;
  event->ack = *ack;
  bpf_ringbuf_submit(event, 0);
}

#endif
