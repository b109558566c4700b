/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Sockets that were open before the programs were loaded: those of the chosen cgroups are taken over, one by one, by an
 * iterator that the loader runs. None begins anew. The iterator may switch a socket, and may not write into it, so it
 * keeps what the socket's congestion control knows, and the wrapper, whose functions are the same on the same memory,
 * takes that back in place of its init.
 *   [plain, or a wrapper that nobody serves] --iterator: slot, knowledge, switch--> [chosen]
 */
#ifndef REINET_ADOPT_BPF_H
#define REINET_ADOPT_BPF_H

#include "kshim/bpf/life.bpf.h"

#define DEEPEST_CGROUP 64 /* levels; systemd's services in containers have about ten */

enum tcp_state {
  TCP_ESTABLISHED = 1,
  TCP_FIN_WAIT1 = 4,
  TCP_CLOSE_WAIT = 8,
  TCP_LAST_ACK = 9,
  TCP_CLOSING = 11,
};

/* Tells whether a wrapper that is being put on this socket goes on with what was known there, and lets it. */
static bool goes_on(struct sock *sk) {
  struct tcp_sock *tp = (struct tcp_sock *)sk;
  struct reinet_known *known = bpf_sk_storage_get(&reinet_known, sk, 0, 0);

  if (!known)
    return false;
#pragma unroll
  for (int i = 0; i < CA_PRIV_WORDS; i++)
    tp->inet_conn.icsk_ca_priv[i] = known->own[i];
  return true;
}

static bool in_chosen_cgroup(struct tcp_sock *tp) {
  struct cgroup *cgroup = tp->inet_conn.icsk_inet.sk.sk_cgrp_data.cgroup;

  for (int level = 0; level < DEEPEST_CGROUP && cgroup; level++) {
    struct cgroup_subsys_state *parent = cgroup->self.parent;
    __u64 id = cgroup->kn->id;

    if (bpf_map_lookup_elem(&reinet_cgroups, &id))
      return true;
    if (!parent)
      return false;
    cgroup = parent->cgroup;
  }
  return false;
}

/* In these states a socket may have data to send: one that was closed still sends what was written before, whether or
 * not its peer has ended its own direction.
 */
static bool may_send(__u8 state) {
  return state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT || state == TCP_FIN_WAIT1 || state == TCP_LAST_ACK ||
         state == TCP_CLOSING;
}

static void adopt(struct tcp_sock *tp, const volatile struct reinet_wrapped *w) {
  struct reinet_known *known;
  struct reinet_slot *slot;
  __u32 index;

  known = bpf_sk_storage_get(&reinet_known, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
  if (!known) {
    COUNT(flows_not_switched);
    return;
  }
#pragma unroll
  for (int i = 0; i < CA_PRIV_WORDS; i++)
    known->own[i] = tp->inet_conn.icsk_ca_priv[i];
  slot = take_slot(tp, bpf_get_socket_cookie(tp), tp->packets_out != 0, &index);
  if (slot) {
    if (SWITCH_TO(tp, w->wrapper))
      give_back_slot(tp, slot, index);
    else
      COUNT(flows_adopted);
  }
  bpf_sk_storage_delete(&reinet_known, tp);
}

/* Takes over the open sockets of the caller's network namespace. One that recovers from a loss is put off, since the
 * switch forgets what there may be to undo; for each of those a byte is written. A socket under a wrapper of ours that
 * has no slot of ours was another shim's, which has ended: names of wrappers are one's own.
 */
SEC("iter/tcp")
int reinet_adopt(struct bpf_iter__tcp *ctx) {
  char name[REINET_CC_NAME_BYTES] = {};
  struct sock_common *skc = ctx->sk_common;
  struct tcp_sock *tp;
  __u8 put_off = 1;

  if (!skc || !may_send(skc->skc_state))
    return 0;
  tp = bpf_skc_to_tcp_sock(skc);
  if (!tp || !in_chosen_cgroup(tp) || bpf_sk_storage_get(&reinet_flows, tp, 0, 0))
    return 0;
  if (bpf_getsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
    return 0;
  for (unsigned int i = 0; i < REINET_ALGORITHMS; i++) {
    if (!same_name(name, wrapped[i].plain) && !same_name(name, wrapped[i].wrapper))
      continue;
    if (ca_state(tp) >= TCP_CA_CWR)
      bpf_seq_write(ctx->meta->seq, &put_off, sizeof(put_off));
    else
      adopt(tp, &wrapped[i]);
    return 0;
  }
  return 0;
}

#endif
