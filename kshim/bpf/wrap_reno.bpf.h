/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Reno under a ceiling; it has no state of its own.
 */
#ifndef REINET_WRAP_RENO_BPF_H
#define REINET_WRAP_RENO_BPF_H

#include "kshim/bpf/wrapper.bpf.h"

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym __weak;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym __weak;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym __weak;

SEC("struct_ops")
void BPF_PROG(reinet_reno_release, struct sock *sk) { end_flow(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_reno_ssthresh, struct sock *sk) { return SSTHRESH_OF_LOSS(sk, tcp_reno_ssthresh); }

/* Not called in CWR and Recovery. */
SEC("struct_ops")
void BPF_PROG(reinet_reno_cong_avoid, struct sock *sk, __u32 ack, __u32 acked) {
  __u32 in_force_pkts = ((struct tcp_sock *)sk)->snd_cwnd;

  tcp_reno_cong_avoid(sk, ack, acked);
  on_window_set(sk, REINET_RENO, in_force_pkts);
}

SEC("struct_ops")
#if REINET_TX_START_OPERATION
void BPF_PROG(reinet_reno_cwnd_event_tx_start, struct sock *sk) { on_tx_start(sk); }
#else
void BPF_PROG(reinet_reno_cwnd_event, struct sock *sk, enum tcp_ca_event event) { on_cwnd_event(sk, event); }
#endif

SEC("struct_ops")
void BPF_PROG(reinet_reno_pkts_acked, struct sock *sk, const struct ack_sample *sample) {
  if (lacks_answer((struct tcp_sock *)sk))
    ANSWER_AGAIN(sk, tcp_reno_ssthresh);
  on_pkts_acked(sk, sample, REINET_RENO);
}

SEC("struct_ops")
__u32 BPF_PROG(reinet_reno_undo_cwnd, struct sock *sk) { return tcp_reno_undo_cwnd(sk); }

SEC(".struct_ops")
struct tcp_congestion_ops reinet_reno = {
    .release = (void *)reinet_reno_release,
    .ssthresh = (void *)reinet_reno_ssthresh,
    .cong_avoid = (void *)reinet_reno_cong_avoid,
#if REINET_TX_START_OPERATION
    .cwnd_event_tx_start = (void *)reinet_reno_cwnd_event_tx_start,
#else
    .cwnd_event = (void *)reinet_reno_cwnd_event,
#endif
    .pkts_acked = (void *)reinet_reno_pkts_acked,
    .undo_cwnd = (void *)reinet_reno_undo_cwnd,
    .name = "reinet_reno",
};

#endif
