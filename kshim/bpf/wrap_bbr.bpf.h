/* SPDX-License-Identifier: GPL-2.0-only
 *
 * BBR under a ceiling.
 *
 * It sets window and pacing rate in cong_control. Its model does not learn the cap where rates are marked
 * (core/cc/cap_limited.h); on a kernel that lets no program mark them it does, and once the cap has gone only BBR's own
 * probing finds the bandwidth above it. get_info is closed to BPF, so ss shows no model.
 */
#ifndef REINET_WRAP_BBR_BPF_H
#define REINET_WRAP_BBR_BPF_H

#include "kshim/bpf/wrapper.bpf.h"

extern void bbr_init(struct sock *sk) __ksym __weak;
extern __u32 bbr_ssthresh(struct sock *sk) __ksym __weak;
extern void bbr_set_state(struct sock *sk, __u8 new_state) __ksym __weak;
#if REINET_TX_START_OPERATION
extern void bbr_cwnd_event_tx_start(struct sock *sk) __ksym __weak;
#else
extern void bbr_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym __weak;
#endif
extern __u32 bbr_min_tso_segs(struct sock *sk) __ksym __weak;
extern __u32 bbr_undo_cwnd(struct sock *sk) __ksym __weak;
extern __u32 bbr_sndbuf_expand(struct sock *sk) __ksym __weak;
/* Linux 6.10 gave cong_control two more arguments. libbpf refuses a whole object over a kfunc of another prototype,
 * even a weak one; so the programs are built for either, and the loader takes those that fit.
 */
#if REINET_CONG_CONTROL_ARGUMENTS == 4
extern void bbr_main(struct sock *sk, __u32 ack, int flag, const struct rate_sample *sample) __ksym __weak;
#else
extern void bbr_main(struct sock *sk, const struct rate_sample *sample) __ksym __weak;
#endif

SEC("struct_ops")
void BPF_PROG(reinet_bbr_init, struct sock *sk) {
  if (!goes_on(sk))
    bbr_init(sk);
}

SEC("struct_ops")
void BPF_PROG(reinet_bbr_release, struct sock *sk) { end_flow(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_bbr_ssthresh, struct sock *sk) { return bbr_ssthresh(sk); }

/* Called on every ACK, in every state. The pacing rate stays BBR's; where the cap binds, the window is the tighter. */
SEC("struct_ops")
#if REINET_CONG_CONTROL_ARGUMENTS == 4
void BPF_PROG(reinet_bbr_cong_control, struct sock *sk, __u32 ack, int flag, const struct rate_sample *sample) {
  bbr_main(sk, ack, flag, sample);
#else
void BPF_PROG(reinet_bbr_cong_control, struct sock *sk, const struct rate_sample *sample) {
  bbr_main(sk, sample);
#endif
  on_window_set(sk, REINET_BBR, 0); /* what it does not remember */
}

SEC("struct_ops")
void BPF_PROG(reinet_bbr_set_state, struct sock *sk, __u8 new_state) { bbr_set_state(sk, new_state); }

SEC("struct_ops")
#if REINET_TX_START_OPERATION
void BPF_PROG(reinet_bbr_cwnd_event_tx_start, struct sock *sk) {
  bbr_cwnd_event_tx_start(sk);
  on_tx_start(sk);
}
#else
void BPF_PROG(reinet_bbr_cwnd_event, struct sock *sk, enum tcp_ca_event event) {
  bbr_cwnd_event(sk, event);
  on_cwnd_event(sk, event);
}
#endif

SEC("struct_ops")
void BPF_PROG(reinet_bbr_pkts_acked, struct sock *sk, const struct ack_sample *sample) {
  on_pkts_acked(sk, sample, REINET_BBR);
}

SEC("struct_ops")
__u32 BPF_PROG(reinet_bbr_min_tso_segs, struct sock *sk) { return bbr_min_tso_segs(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_bbr_undo_cwnd, struct sock *sk) { return bbr_undo_cwnd(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_bbr_sndbuf_expand, struct sock *sk) { return bbr_sndbuf_expand(sk); }

SEC(".struct_ops")
struct tcp_congestion_ops reinet_bbr = {
    .init = (void *)reinet_bbr_init,
    .release = (void *)reinet_bbr_release,
    .ssthresh = (void *)reinet_bbr_ssthresh,
    .cong_control = (void *)reinet_bbr_cong_control,
    .set_state = (void *)reinet_bbr_set_state,
#if REINET_TX_START_OPERATION
    .cwnd_event_tx_start = (void *)reinet_bbr_cwnd_event_tx_start,
#else
    .cwnd_event = (void *)reinet_bbr_cwnd_event,
#endif
    .pkts_acked = (void *)reinet_bbr_pkts_acked,
    .min_tso_segs = (void *)reinet_bbr_min_tso_segs,
    .undo_cwnd = (void *)reinet_bbr_undo_cwnd,
    .sndbuf_expand = (void *)reinet_bbr_sndbuf_expand,
    .name = "reinet_bbr",
};

#endif
