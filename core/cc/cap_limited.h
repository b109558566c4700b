/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Rates that were measured while a cap was the limit. One rule, in C that the BPF verifier accepts, for the kernel's
 * wrapper of BBR and the simulator's sender.
 *
 * BBR makes a model of the path out of the rates that it measures. What a cap held back says what the cap allowed, not
 * what the path can carry: as with an application that has nothing to send, such a rate may raise the estimate and is
 * never to lower it. Else BBR takes the cap for the path, and has to probe for the rest when the cap rises. The stack
 * marks packets that leave while the application is the limit, and BBR marks its own when it drains the queue to see
 * the minimum RTT; a cap that binds sets the same mark. While BBR starts up no cap acts: the start-up ends when rates
 * no longer grow, so a cap would end it at the cap, and marked rates not at all. Records tell of the application alone,
 * so what the cap has written is remembered.
 */
#ifndef REINET_CAP_LIMITED_H
#define REINET_CAP_LIMITED_H

#include "core/flow_stats.h"

/* Takes the stack's mark, 0 = none: the packets delivered when it lapses. Returns the mark while a cap binds. One that
 * is not the cap's own stays: who held back first counts.
 */
static inline reinet_u32 reinet_cap_limited_until(reinet_u32* caps_own, reinet_u32 limited_until,
                                                  reinet_u32 delivered_pkts, reinet_u32 in_flight_pkts) {
  if (limited_until && limited_until != *caps_own) return limited_until;
  *caps_own = delivered_pkts + in_flight_pkts;
  if (!*caps_own) *caps_own = 1;
  return *caps_own;
}

#endif
