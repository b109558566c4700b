/* SPDX-License-Identifier: GPL-2.0-only
 *
 * What every wrapper does.
 *
 * pkts_acked, on every ACK while data is outstanding, measures the flow. It comes before the algorithm sets the window
 * for that ACK, so the cap is applied a second time after that.
 *
 * The loader finds the callbacks of each wrapper in the programs called after its structure and their member, and
 * registers the structure under the name that it chose. The kernel's functions are weak symbols: a host that lacks one
 * algorithm still wraps the others.
 */
#ifndef REINET_WRAPPER_BPF_H
#define REINET_WRAPPER_BPF_H

#include "kshim/bpf/kernel.h"

#include <bpf/bpf_tracing.h>

#include "kshim/bpf/adopt.bpf.h"
#include "kshim/bpf/cap.bpf.h"
#include "kshim/bpf/life.bpf.h"
#include "kshim/bpf/period.bpf.h"

/* Inlined, so that the verifier knows the algorithm. */
static __always_inline void on_pkts_acked(struct sock *sk, const struct ack_sample *sample,
                                          enum reinet_algorithm algorithm) {
  struct tcp_sock *tp = (struct tcp_sock *)sk;
  struct reinet_slot *slot;
  __u32 index;

  slot = slot_of(sk, &index);
  if (!slot)
    return;
  if (asked_to_leave()) {
    leave(tp, &wrapped[algorithm]);
    return;
  }
  note_outage(tp, slot, sample->rtt_us);
  apply_cap(tp, slot, index, algorithm, tp->snd_cwnd);
  take_ack(tp, slot, index, sample->rtt_us, algorithm);
}

/* in_force_pkts: the window before that. */
static __always_inline void on_window_set(struct sock *sk, enum reinet_algorithm algorithm, __u32 in_force_pkts) {
  struct reinet_slot *slot;
  __u32 index;

  slot = slot_of(sk, &index);
  if (slot)
    apply_cap((struct tcp_sock *)sk, slot, index, algorithm, in_force_pkts);
}

/* The ssthresh that a loss leads to: what the algorithm makes of the window that the loss is to blame on. A macro,
 * since the verifier must see the call of the kernel's function.
 */
#define SSTHRESH_OF_LOSS(sk, algorithms_own)                                                                           \
  ({                                                                                                                   \
    struct tcp_sock *tp_ = (struct tcp_sock *)(sk);                                                                    \
    __u32 cwnd_pkts_ = tp_->snd_cwnd, blamed_pkts_, ssthresh_pkts_, index_;                                            \
    struct reinet_slot *slot_ = slot_of(sk, &index_);                                                                  \
                                                                                                                       \
    blamed_pkts_ = slot_ ? reinet_withheld_blamed_pkts(&slot_->withheld, cwnd_pkts_) : cwnd_pkts_;                     \
    tp_->snd_cwnd = blamed_pkts_;                                                                                      \
    ssthresh_pkts_ = algorithms_own(sk);                                                                               \
    tp_->snd_cwnd = cwnd_pkts_;                                                                                        \
    reinet_blamed_ssthresh_pkts(blamed_pkts_, cwnd_pkts_, ssthresh_pkts_);                                             \
  })

/* Where the kernel skips a program, it takes what is on its stack for the answer; one with patches of its own does so
 * now and then in a softirq. As ssthresh that is a window without a bound. An answer of ours is never above the window
 * that the reduction began with; what is above it, and was not put there by its undoing, is none, so we are asked
 * again.
 */
static bool lacks_answer(const struct tcp_sock *tp) {
  __u32 most_pkts = tp->prior_cwnd < REINET_LEAST_SSTHRESH_PKTS ? REINET_LEAST_SSTHRESH_PKTS : tp->prior_cwnd;
  __u8 state = ca_state(tp);

  return state >= TCP_CA_CWR && tp->snd_ssthresh > most_pkts && (state == TCP_CA_CWR || tp->undo_marker);
}

#define ANSWER_AGAIN(sk, algorithms_own)                                                                               \
  ({                                                                                                                   \
    struct tcp_sock *reduced_ = (struct tcp_sock *)(sk);                                                               \
    __u32 present_pkts_ = reduced_->snd_cwnd;                                                                          \
                                                                                                                       \
    reduced_->snd_cwnd = reduced_->prior_cwnd;                                                                         \
    reduced_->snd_ssthresh = SSTHRESH_OF_LOSS(sk, algorithms_own);                                                     \
    reduced_->snd_cwnd = present_pkts_;                                                                                \
    COUNT(answers_replaced);                                                                                           \
  })

#if REINET_TX_START_OPERATION
static void on_tx_start(struct sock *sk) { take_restart((struct tcp_sock *)sk); }
#else
static void on_cwnd_event(struct sock *sk, enum tcp_ca_event event) {
  if (event == CA_EVENT_TX_START)
    take_restart((struct tcp_sock *)sk);
}
#endif

#endif
