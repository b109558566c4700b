/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The packet that may follow an outage whatever the cap. One rule, in C that the BPF verifier accepts, for the kernel's
 * wrappers and the simulator's sender. The gate needs none: a timeout in the outage takes all that is in flight for
 * lost, so packets may wait in the kernel, and leave with the first ACK.
 *
 * What an outage shows of the path makes a cap fall, mostly below what is in flight by then. If the end of that was
 * lost, because the link's buffer overflowed meanwhile, nothing may be sent any more, so no later packet tells of the
 * loss, and the loss probe and the timeout wait for a part or a multiple of a smoothed RTT that is by then nearly as
 * long as the outage. Without a cap each ACK after the outage lets a packet follow. Under one a single packet does: its
 * ACK shows what was lost before it (RFC 8985).
 */
#ifndef REINET_OUTAGE_H
#define REINET_OUTAGE_H

#include "core/period.h"

#define REINET_OUTAGE_US (REINET_SILENCE_NS / 1000)

struct reinet_outage {
  reinet_u32 heard_us; /* the latest ACK with an RTT sample, modulo 2^32; 0 = none yet */
  reinet_u32 end_seq;  /* of what was sent before it was over, as long as not all of that is acknowledged */
};

/* Takes an ACK: its time, its RTT sample (negative = none) and the minimum RTT, the first sequence that is not
 * acknowledged and the next one to be sent; packets or bytes, and they may wrap. An ACK after a silence tells of an
 * outage where its packet has waited as long: after an idle time it has not. One of a retransmission has no sample and
 * does not end the silence.
 */
static inline void reinet_outage_on_ack(struct reinet_outage* outage, reinet_u64 now_us, reinet_s32 rtt_us,
                                        reinet_u32 min_rtt_us, reinet_u32 una_seq, reinet_u32 next_seq) {
  if (!outage->heard_us || (reinet_s32)(una_seq - outage->end_seq) > 0) outage->end_seq = una_seq;
  if (rtt_us < 0) return;
  if (outage->heard_us && (reinet_u32)now_us - outage->heard_us >= REINET_OUTAGE_US &&
      (reinet_u32)rtt_us >= (reinet_u64)min_rtt_us + REINET_OUTAGE_US)
    outage->end_seq = next_seq;
  outage->heard_us = (reinet_u32)now_us;
}

/* Returns the window that a cap leaves. */
static inline reinet_u32 reinet_outage_capped_pkts(const struct reinet_outage* outage, reinet_u32 cap_pkts,
                                                   reinet_u32 in_flight_pkts, reinet_u32 una_seq, reinet_u32 next_seq) {
  int follows = next_seq == outage->end_seq && next_seq != una_seq;
  return follows && in_flight_pkts >= cap_pkts ? in_flight_pkts + 1 : cap_pkts;
}

#endif
