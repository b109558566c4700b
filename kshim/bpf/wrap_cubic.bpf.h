/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Cubic under a ceiling.
 */
#ifndef REINET_WRAP_CUBIC_BPF_H
#define REINET_WRAP_CUBIC_BPF_H

#include "kshim/bpf/wrapper.bpf.h"

extern void cubictcp_init(struct sock *sk) __ksym __weak;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym __weak;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym __weak;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym __weak;
#if REINET_TX_START_OPERATION
extern void cubictcp_cwnd_event_tx_start(struct sock *sk) __ksym __weak;
#else
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym __weak;
#endif
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym __weak;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym __weak; /* Cubic's own, too */

SEC("struct_ops")
void BPF_PROG(reinet_cubic_init, struct sock *sk) {
  if (!goes_on(sk))
    cubictcp_init(sk);
}

SEC("struct_ops")
void BPF_PROG(reinet_cubic_release, struct sock *sk) { end_flow(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_cubic_ssthresh, struct sock *sk) { return SSTHRESH_OF_LOSS(sk, cubictcp_recalc_ssthresh); }

/* Not called in CWR and Recovery. */
SEC("struct_ops")
void BPF_PROG(reinet_cubic_cong_avoid, struct sock *sk, __u32 ack, __u32 acked) {
  __u32 in_force_pkts = ((struct tcp_sock *)sk)->snd_cwnd;

  cubictcp_cong_avoid(sk, ack, acked);
  on_window_set(sk, REINET_CUBIC, in_force_pkts);
}

SEC("struct_ops")
void BPF_PROG(reinet_cubic_set_state, struct sock *sk, __u8 new_state) { cubictcp_state(sk, new_state); }

SEC("struct_ops")
#if REINET_TX_START_OPERATION
void BPF_PROG(reinet_cubic_cwnd_event_tx_start, struct sock *sk) {
  cubictcp_cwnd_event_tx_start(sk);
  on_tx_start(sk);
}
#else
void BPF_PROG(reinet_cubic_cwnd_event, struct sock *sk, enum tcp_ca_event event) {
  cubictcp_cwnd_event(sk, event);
  on_cwnd_event(sk, event);
}
#endif

SEC("struct_ops")
void BPF_PROG(reinet_cubic_pkts_acked, struct sock *sk, const struct ack_sample *sample) {
  cubictcp_acked(sk, sample);
  if (lacks_answer((struct tcp_sock *)sk))
    ANSWER_AGAIN(sk, cubictcp_recalc_ssthresh);
  on_pkts_acked(sk, sample, REINET_CUBIC);
}

SEC("struct_ops")
__u32 BPF_PROG(reinet_cubic_undo_cwnd, struct sock *sk) { return tcp_reno_undo_cwnd(sk); }

SEC(".struct_ops")
struct tcp_congestion_ops reinet_cubic = {
    .init = (void *)reinet_cubic_init,
    .release = (void *)reinet_cubic_release,
    .ssthresh = (void *)reinet_cubic_ssthresh,
    .cong_avoid = (void *)reinet_cubic_cong_avoid,
    .set_state = (void *)reinet_cubic_set_state,
#if REINET_TX_START_OPERATION
    .cwnd_event_tx_start = (void *)reinet_cubic_cwnd_event_tx_start,
#else
    .cwnd_event = (void *)reinet_cubic_cwnd_event,
#endif
    .pkts_acked = (void *)reinet_cubic_pkts_acked,
    .undo_cwnd = (void *)reinet_cubic_undo_cwnd,
    .name = "reinet_cubic",
};

#endif
