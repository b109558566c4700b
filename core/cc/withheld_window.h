/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The window that a cap withholds, given back after an idle time. One rule, in C that the BPF verifier accepts, for the
 * kernel's wrappers and the simulator's sender.
 *
 * A cap shortens a queue of the flow's own, and an idle time has emptied that: the first window after it is to be the
 * congestion control's own, the one from before the cap, halved for each timeout within the idle time as Linux halves
 * its window. The capped window that the kernel has kept is not that: from it each transfer over a connection that is
 * kept alive would begin slowly where a plain one does not. Nor are the timeouts under the cap, for they shrink with
 * the queue; those count that the flow had when the cap took the window. Where the host keeps idle flows' windows
 * (net.ipv4.tcp_slow_start_after_idle = 0), the window counts as not having been idle, and all of it comes back.
 */
#ifndef REINET_WITHHELD_WINDOW_H
#define REINET_WITHHELD_WINDOW_H

#include "core/flow_stats.h"

#define REINET_INITIAL_CWND_PKTS 10U /* TCP_INIT_CWND (RFC 6928) */
#define REINET_MOST_HALVINGS 16      /* leave less than ten of half a million packets; the verifier wants a bound */

struct reinet_withheld_window {
  reinet_u32 cwnd_pkts; /* 0 = none */
  reinet_u32 timeout;   /* of retransmission, under that window; in any unit */
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

/* Takes the window that a cap is about to lower. Of several the highest counts, for under a cap every ACK lets the
 * window grow a little and fall again.
 */
static inline void reinet_withheld_on_cap(struct reinet_withheld_window* withheld, reinet_u32 cwnd_pkts,
                                          reinet_u32 timeout) {
  if (cwnd_pkts <= withheld->cwnd_pkts) return;
  withheld->cwnd_pkts = cwnd_pkts;
  withheld->timeout = timeout;
}

/* Returns the window to go on with after an idle time, at least the present one, and withholds nothing any more. */
static inline reinet_u32 reinet_withheld_given_back_pkts(struct reinet_withheld_window* withheld, reinet_u32 cwnd_pkts,
                                                         reinet_u64 idle) {
  reinet_u32 own_pkts = reinet_cwnd_after_idle_pkts(withheld->cwnd_pkts, idle, withheld->timeout);
  reinet_withheld_forget(withheld);
  return own_pkts > cwnd_pkts ? own_pkts : cwnd_pkts;
}

#endif
