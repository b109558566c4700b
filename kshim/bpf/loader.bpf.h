/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Programs that the loader runs itself: they sweep and count the sockets, and replay recorded ACKs.
 */
#ifndef REINET_LOADER_BPF_H
#define REINET_LOADER_BPF_H

#include "kshim/bpf/period.bpf.h"
#include "kshim/bpf/switch.bpf.h"

/* Switches every socket of the caller's network namespace that runs a wrapper back, idle ones too. A socket has an
 * entry in reinet_flows for as long as it runs that very shim's wrapper; one that was disconnected and connected anew
 * since that shim ended runs it without.
 */
SEC("iter/tcp")
int reinet_sweep(struct bpf_iter__tcp *ctx) {
  char name[REINET_CC_NAME_BYTES] = {};
  struct sock_common *skc = ctx->sk_common;
  struct tcp_sock *tp;

  if (!skc)
    return 0;
  tp = bpf_skc_to_tcp_sock(skc);
  if (!tp || bpf_getsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
    return 0;
  if (sweeps_flows_only && !bpf_sk_storage_get(&reinet_flows, tp, 0, 0))
    return 0;
  for (unsigned int i = 0; i < REINET_ALGORITHMS; i++) {
    if (same_name(name, wrapped[i].wrapper)) {
      if (!SWITCH_TO(tp, wrapped[i].plain))
        COUNT(flows_switched_back);
      return 0;
    }
  }
  return 0;
}

/* Writes the caller's network namespace (its inode) once for every socket of it in reinet_flows, which may be another
 * shim's map. The kernel's iterator over the map itself would find them all at once, but some kernels refuse iterators
 * over maps to everybody.
 */
SEC("iter/tcp")
int reinet_where(struct bpf_iter__tcp *ctx) {
  struct sock_common *skc = ctx->sk_common;
  struct tcp_sock *tp;
  __u32 namespace_inode;

  if (!skc)
    return 0;
  tp = bpf_skc_to_tcp_sock(skc);
  if (!tp || !bpf_sk_storage_get(&reinet_flows, tp, 0, 0))
    return 0;
  namespace_inode = skc->skc_net.net->ns.inum;
  bpf_seq_write(ctx->meta->seq, &namespace_inode, sizeof(namespace_inode));
  return 0;
}

/* Moves one period by one recorded event, by the code that live flows run. */
SEC("syscall")
int reinet_replay(struct reinet_replay *ctx) {
  struct reinet_period_config config = {period_config.min_period_ns, period_config.packet_timed, 0};
  struct reinet_period period = ctx->period;
  struct reinet_flow_stats record = {};
  struct reinet_ack ack = ctx->event.ack;

  ctx->ended = 0;
  if (ctx->event.kind == REINET_EVENT_RESTART)
    reinet_period_on_restart(&period, ack.time_ns);
  else
    ctx->ended = period_on_ack(&period, &config, &ack, &record);
  ctx->period = period;
  ctx->record = record;
  return 0;
}

#endif
