/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The window that a cap took away, for as long as it may still be the cause of a loss. One rule, in C that the BPF
 * verifier accepts, for the kernel's wrappers, the simulator's sender and the gate's virtual Cubic.
 *
 * What a cap has just made small was large a moment ago, and what was sent then is still on its way. If some of that is
 * lost, the window to blame is the earlier one. An algorithm that were shown the capped one would take its share a
 * second time: ssthresh would become a part of the cap, and on a long path congestion avoidance needs seconds to come
 * back from there. So until all is acknowledged that was outstanding at the fall, the algorithm is shown the earlier
 * window when it asks what a loss makes of it. Its answer is obeyed up to the present window: a loss never raises
 * that, and where the cap has taken more than the algorithm would, the cap was the reduction.
 */
#ifndef REINET_FALLEN_WINDOW_H
#define REINET_FALLEN_WINDOW_H

#include "core/flow_stats.h"

#define REINET_LEAST_SSTHRESH_PKTS 2U /* of every algorithm of the kernel's */
#define REINET_NEARLY_AS_HIGH 8U      /* less than an eighth lower */

struct reinet_fallen_window {
  reinet_u32 cwnd_pkts; /* before the cap took it, 0 = none */
  reinet_u32 end_seq;   /* what was sent under it ends here; packets or bytes, and it may wrap */
};

/* Takes the first sequence that is not acknowledged. To be called at every ACK, before what follows. */
static inline void reinet_fallen_on_ack(struct reinet_fallen_window* fallen, reinet_u32 una_seq) {
  if (fallen->cwnd_pkts && (reinet_s32)(una_seq - fallen->end_seq) >= 0) fallen->cwnd_pkts = 0;
}

/* Takes the window in force, which a cap is about to lower, and the next sequence to be sent. Of several falls the
 * highest counts, and where a later one is nearly as high, what was sent until then counts as sent under it: a cap that
 * moves by a packet or two falls with almost every ACK, and one of these falls must not hide the deep one after it. It
 * is the window before the ACK let it grow: under a cap it grows and falls again with every ACK, and nothing is ever
 * sent under what it grew to. If that counted, an ACK for many packets would hide a loss.
 */
static inline void reinet_fallen_on_cap(struct reinet_fallen_window* fallen, reinet_u32 cwnd_pkts,
                                        reinet_u32 next_seq) {
  if (cwnd_pkts < fallen->cwnd_pkts - fallen->cwnd_pkts / REINET_NEARLY_AS_HIGH) return;
  if (cwnd_pkts > fallen->cwnd_pkts) fallen->cwnd_pkts = cwnd_pkts;
  fallen->end_seq = next_seq;
}

/* Returns the window that the algorithm is shown when a loss is found. */
static inline reinet_u32 reinet_fallen_cwnd_pkts(const struct reinet_fallen_window* fallen, reinet_u32 cwnd_pkts) {
  return fallen->cwnd_pkts > cwnd_pkts ? fallen->cwnd_pkts : cwnd_pkts;
}

/* Returns what becomes of the ssthresh that the algorithm answered; cwnd_pkts is the present window. */
static inline reinet_u32 reinet_fallen_ssthresh_pkts(const struct reinet_fallen_window* fallen, reinet_u32 cwnd_pkts,
                                                     reinet_u32 ssthresh_pkts) {
  if (fallen->cwnd_pkts <= cwnd_pkts) return ssthresh_pkts;
  if (cwnd_pkts < REINET_LEAST_SSTHRESH_PKTS) cwnd_pkts = REINET_LEAST_SSTHRESH_PKTS;
  return ssthresh_pkts < cwnd_pkts ? ssthresh_pkts : cwnd_pkts;
}

#endif
