/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The window that a cap withholds, which an idle time gives back and which is to blame for a loss. One rule, in C that
 * the BPF verifier accepts, for the kernel's wrappers, the simulator's sender and the gate's virtual Cubic.
 *
 * It is the window that the flow would have without the cap: the highest that the cap took since the last loss. While
 * that is below twice the cap it grows by a packet for each window that is delivered under the cap, as Reno's would: of
 * a higher one even half, the deepest of the usual answers to a loss, is above the cap.
 *
 * After an idle time. A cap shortens a queue of the flow's own, and an idle time has emptied that: the first window
 * after it is to be the congestion control's own, halved for each timeout within the idle time as Linux halves its
 * window. The capped window that the kernel has kept is not that: from it each transfer over a connection that is kept
 * alive would begin slowly where a plain one does not. Nor are the timeouts under the cap, for they shrink with the
 * queue; those count that the flow had when the cap took the window. Where the host keeps idle flows' windows
 * (net.ipv4.tcp_slow_start_after_idle = 0), the window counts as not having been idle, and all of it comes back.
 *
 * At a loss. An algorithm answers with a share of its window and relies on the queue that the rest keeps filled. A
 * capped window keeps a short one: its share is below what the path needs, and on a long path congestion avoidance
 * needs seconds to come back. What a cap has just taken away may be the cause, too, for its packets are still on their
 * way. So the algorithm is shown the withheld window, which Cubic grows back to quickly, and its answer is obeyed up to
 * the present one: a loss never raises that.
 */
#ifndef REINET_WITHHELD_WINDOW_H
#define REINET_WITHHELD_WINDOW_H

#include "core/flow_stats.h"

#define REINET_INITIAL_CWND_PKTS 10U  /* TCP_INIT_CWND (RFC 6928) */
#define REINET_MOST_HALVINGS 16       /* leave less than ten of half a million packets; the verifier wants a bound */
#define REINET_LEAST_SSTHRESH_PKTS 2U /* of every algorithm of the kernel's */
#define REINET_MOST_WITHHELD_CAPS 2U

struct reinet_withheld_window {
  reinet_u32 cwnd_pkts;     /* 0 = none */
  reinet_u32 timeout;       /* of retransmission, when the cap took it; in any unit */
  reinet_u32 grown_at_pkts; /* delivered in all when it last grew; it may wrap */
};

/* Returns what an idle time leaves of a window (RFC 2861; tcp_slow_start_after_idle_check and tcp_cwnd_restart,
 * net/ipv4/tcp_output.c): all of it up to a timeout, else half of it for each, down to the initial window.
 */
static inline reinet_u32 reinet_cwnd_after_idle_pkts(reinet_u32 cwnd_pkts, reinet_u64 idle, reinet_u64 timeout) {
  reinet_u32 floor_pkts = cwnd_pkts < REINET_INITIAL_CWND_PKTS ? cwnd_pkts : REINET_INITIAL_CWND_PKTS;
  int halvings;
  for (halvings = 0; halvings < REINET_MOST_HALVINGS && idle > timeout && cwnd_pkts > floor_pkts; ++halvings) {
    cwnd_pkts /= 2;
    idle -= timeout;
  }
  return cwnd_pkts > floor_pkts ? cwnd_pkts : floor_pkts;
}

/* Forgets it: after a loss, or without a cap, the window is again the algorithm's. */
static inline void reinet_withheld_forget(struct reinet_withheld_window* withheld) { withheld->cwnd_pkts = 0; }

/* Takes what a cap is about to lower: the window in force, before the ACK let it grow, for under a cap it grows and
 * falls again with every ACK, and nothing is ever sent under what it grew to. If that counted, an ACK for many packets
 * would hide a loss.
 */
static inline void reinet_withheld_on_cap(struct reinet_withheld_window* withheld, reinet_u32 in_force_pkts,
                                          reinet_u32 cap_pkts, reinet_u32 delivered_pkts, reinet_u32 timeout) {
  if (in_force_pkts < cap_pkts) in_force_pkts = cap_pkts;
  if (in_force_pkts > withheld->cwnd_pkts) {
    withheld->cwnd_pkts = in_force_pkts;
    withheld->timeout = timeout;
  } else if (delivered_pkts - withheld->grown_at_pkts < withheld->cwnd_pkts) {
    return;
  } else if (withheld->cwnd_pkts < REINET_MOST_WITHHELD_CAPS * cap_pkts) {
    ++withheld->cwnd_pkts;
  }
  withheld->grown_at_pkts = delivered_pkts;
}

/* Returns the window to go on with after an idle time, at least the present one, and withholds nothing any more. */
static inline reinet_u32 reinet_withheld_given_back_pkts(struct reinet_withheld_window* withheld, reinet_u32 cwnd_pkts,
                                                         reinet_u64 idle) {
  reinet_u32 own_pkts = reinet_cwnd_after_idle_pkts(withheld->cwnd_pkts, idle, withheld->timeout);
  reinet_withheld_forget(withheld);
  return own_pkts > cwnd_pkts ? own_pkts : cwnd_pkts;
}

/* Returns the window that the algorithm is shown at a loss, at least the present one, and withholds nothing any more.
 */
static inline reinet_u32 reinet_withheld_blamed_pkts(struct reinet_withheld_window* withheld, reinet_u32 cwnd_pkts) {
  reinet_u32 blamed_pkts = withheld->cwnd_pkts;
  reinet_withheld_forget(withheld);
  return blamed_pkts > cwnd_pkts ? blamed_pkts : cwnd_pkts;
}

/* Returns what becomes of the ssthresh that the algorithm answered to that window; cwnd_pkts is the present one. */
static inline reinet_u32 reinet_blamed_ssthresh_pkts(reinet_u32 blamed_pkts, reinet_u32 cwnd_pkts,
                                                     reinet_u32 ssthresh_pkts) {
  if (blamed_pkts <= cwnd_pkts) return ssthresh_pkts;
  if (cwnd_pkts < REINET_LEAST_SSTHRESH_PKTS) cwnd_pkts = REINET_LEAST_SSTHRESH_PKTS;
  return ssthresh_pkts < cwnd_pkts ? ssthresh_pkts : cwnd_pkts;
}

#endif
