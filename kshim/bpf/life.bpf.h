/* SPDX-License-Identifier: GPL-2.0-only
 *
 * A flow's beginning and end: a slot is taken, the socket switched to the wrapper, and all of it undone.
 */
#ifndef REINET_LIFE_BPF_H
#define REINET_LIFE_BPF_H

#include "kshim/bpf/cap.bpf.h"
#include "kshim/bpf/slot.bpf.h"
#include "kshim/bpf/switch.bpf.h"

static void free_slot(struct reinet_slot *slot, __u32 index) {
  WRITE_ONCE(slot->cookie, 0);
  bpf_map_push_elem(&reinet_free, &index, 0);
}

/* The reader looks at no slot beyond the highest that was ever used: with room for many flows and few of them, a scan
 * stays short. The lowest free slot is used first until one comes back.
 */
static void note_used(__u32 index) {
  struct reinet_counters *c = counters();

  for (int attempt = 0; c && attempt < 8; attempt++) { /* so many processors at once, with flows of a new record */
    __u64 before = READ_ONCE(c->slots_used);

    if (index < before || __sync_val_compare_and_swap(&c->slots_used, before, (__u64)index + 1) == before)
      return;
  }
}

/* Gives a socket a slot; it is not switched to the wrapper yet. The kernel's programs name a socket by pointers of
 * several kinds.
 */
static __always_inline struct reinet_slot *take_slot(void *sk, __u64 cookie, __u32 outstanding, __u32 *index) {
  const struct reinet_cap *cap;
  struct reinet_slot *slot;
  __u32 *stored;

  if (bpf_map_pop_elem(&reinet_free, index)) {
    COUNT(flows_without_slot);
    return NULL;
  }
  slot = bpf_map_lookup_elem(&reinet_slots, index);
  if (!slot)
    return NULL; /* no index is out of range */
  stored = bpf_sk_storage_get(&reinet_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
  if (!stored) {
    free_slot(slot, *index);
    COUNT(flows_not_switched);
    return NULL;
  }
  *stored = *index;
  note_used(*index);
  cap = cap_of(*index);
  if (cap) /* a socket that connects anew keeps its cookie, by which its former connection's cap would be its own */
    WRITE_ONCE(slot->void_lease, READ_ONCE(cap->lease));
  write_begin(slot);
  slot->outstanding = outstanding;
  reinet_withheld_forget(&slot->withheld);
  slot->cap_limited_until = 0;
  __builtin_memset(&slot->outage, 0, sizeof(slot->outage));
  __builtin_memset(&slot->period, 0, sizeof(slot->period));
  WRITE_ONCE(slot->cookie, cookie);
  write_end(slot);
  return slot;
}

static __always_inline void give_back_slot(void *sk, struct reinet_slot *slot, __u32 index) {
  bpf_sk_storage_delete(&reinet_flows, sk);
  free_slot(slot, index);
  COUNT(flows_not_switched);
}

static void choose(struct bpf_sock_ops *ctx, struct bpf_sock *sk, const volatile struct reinet_wrapped *w) {
  struct reinet_slot *slot;
  __u32 index;

  slot = take_slot(sk, bpf_get_socket_cookie(ctx), 0, &index);
  if (!slot)
    return;
  if (SWITCH_TO(ctx, w->wrapper)) {
    give_back_slot(sk, slot, index);
    return;
  }
  COUNT(flows_chosen);
}

static void consider(struct bpf_sock_ops *ctx) {
  char name[REINET_CC_NAME_BYTES] = {};
  struct bpf_sock *sk = ctx->sk;

  if (!sk || bpf_getsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
    return;
  if (bpf_sk_storage_get(&reinet_flows, sk, 0, 0))
    return;
  for (unsigned int i = 0; i < REINET_ALGORITHMS; i++) {
    /* A socket that was disconnected and connects again runs the wrapper already. */
    if (same_name(name, wrapped[i].plain) || same_name(name, wrapped[i].wrapper)) {
      choose(ctx, sk, &wrapped[i]);
      return;
    }
  }
}

SEC("sockops")
int reinet_choose(struct bpf_sock_ops *ctx) {
  if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
    consider(ctx);
  return 1;
}

/* The record goes out before the slot is free: a reader that sees the slot's owner gone finds the record waiting. */
static void end_flow(struct sock *sk) {
  struct reinet_flow_stats record = {};
  struct reinet_slot *slot;
  __u32 index;

  slot = slot_of(sk, &index);
  if (!slot)
    return;
  record.cookie = slot->cookie;
  record.slot = index;
  record.time_ns = bpf_ktime_get_ns();
  record.flags = REINET_FLAG_CLOSED;
  send_record(&record);
  bpf_sk_storage_delete(&reinet_flows, sk);
  free_slot(slot, index);
}

/* What a congestion control knows of its flow. */
struct knowledge {
  __u64 own[CA_PRIV_WORDS];
  unsigned long pacing_rate;
  __u32 ssthresh_pkts;
};

/* Switches a flow to its own congestion control and lets that go on where the wrapper, which ran the same functions on
 * the same memory, has come to. The switch as such begins anew: the kernel clears icsk_ca_priv and calls init, and BBR
 * is back in STARTUP, with a pacing rate of nearly three windows a round trip. What init wrote is overwritten here,
 * before it can act. end_flow runs within the switch, so nothing may touch the slot afterwards.
 */
static bool hand_over(struct tcp_sock *tp, const volatile struct reinet_wrapped *w) {
  struct inet_connection_sock *icsk = &tp->inet_conn;
  struct knowledge knows;

#pragma unroll
  for (int i = 0; i < CA_PRIV_WORDS; i++)
    knows.own[i] = icsk->icsk_ca_priv[i];
  knows.pacing_rate = icsk->icsk_inet.sk.sk_pacing_rate;
  knows.ssthresh_pkts = tp->snd_ssthresh;
  if (SWITCH_TO(tp, w->plain))
    return false;
#pragma unroll
  for (int i = 0; i < CA_PRIV_WORDS; i++)
    tp->inet_conn.icsk_ca_priv[i] = knows.own[i];
  tp->inet_conn.icsk_inet.sk.sk_pacing_rate = knows.pacing_rate;
  tp->snd_ssthresh = knows.ssthresh_pkts;
  return true;
}

/* Asked to leave, a flow goes at its next ACK, in whatever network namespace it lives; one that recovers from a loss
 * first does that, for the switch forgets what there may be to undo. Until then the wrapper is inert, without cap and
 * records: on an idle flow for as long as it is idle.
 */
static void leave(struct tcp_sock *tp, const volatile struct reinet_wrapped *w) {
  if (ca_state(tp) < TCP_CA_CWR && hand_over(tp, w))
    COUNT(flows_switched_back);
}

#endif
