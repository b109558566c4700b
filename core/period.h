/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The period: when a FlowStats record is due, and what it says. One implementation, in C that the BPF verifier accepts,
 * compiled into the BPF programs, the daemon's reader and the simulator.
 *
 * A period ends at the first ACK of a packet sent after the period began (the packet-timed round of tcp_bbr.c) and at
 * least min_period_ns after its start. With packet_timed = 0 it ends at the first ACK min_period_ns after its start
 * (the fixed period of DeepCC's published code). An ACK that ends a period without any RTT sample yields a record
 * flagged NO_SAMPLE. With data outstanding and no ACK for REINET_SILENCE_NS a record flagged NO_SAMPLE and SILENCE is
 * emitted, and again every REINET_SILENCE_NS while the silence lasts; such a record does not end the period.
 */
#ifndef REINET_PERIOD_H
#define REINET_PERIOD_H

#include "core/flow_stats.h"

#define REINET_MIN_PERIOD_NS 10000000ULL /* 10 ms: below it a period holds too few samples for a mean */
#define REINET_SILENCE_NS 250000000ULL   /* 250 ms: cellular outages last seconds, ordinary gaps tens of ms */
#define REINET_NS_PER_S 1000000000ULL
#define REINET_WAY_BACK_NS 30000000000ULL /* 30 s: in twice that, clocks that drift by 50 ppm part by 3 ms */
#define REINET_TICKS_NS REINET_NS_PER_S   /* 1 s: after that, ticks of 1 ms are told from others */
#define REINET_IDLE_PARTS 4 /* an idle time above a quarter of the smoothed RTT is a pause of the application's */

struct reinet_period_config {
  reinet_u64 min_period_ns;
  reinet_u32 packet_timed; /* 1 = rounds, 0 = fixed period */
  reinet_u32 unused;
};

/* How long ACKs wait on their way back: by how much an ACK's way is longer, by the sender's clock and by the timestamp
 * that the peer put on it (RFC 7323), than the shortest of the last 30 to 60 s, for what the clocks differ by is not
 * known. The kernel's tcp_lp.c has the same for the way there. A queue of ACKs that stands for longer is not seen.
 */
struct reinet_way_back {
  reinet_u64 first_ns;            /* when the flow's first ACK with a timestamp came, 0 = none yet */
  reinet_u64 peer_ticks;          /* of the peer's clock since then */
  reinet_u64 window_ns;           /* when the window that least_us is of began */
  reinet_u64 wait_sum_us;         /* of this period's ACKs */
  reinet_u32 acks;                /* their number */
  reinet_u32 peer_ms;             /* the latest timestamp */
  reinet_u32 least_us, before_us; /* the shortest way in the window and in the one before, next to the first ACK's */
};

/* Ways are numbers modulo 2^32, as timestamps are. */
static inline reinet_u32 reinet_shorter_us(reinet_u32 a_us, reinet_u32 b_us) {
  return (reinet_s32)(a_us - b_us) < 0 ? a_us : b_us;
}

static inline void reinet_way_back_take(struct reinet_way_back* w, reinet_u64 now_ns, reinet_u32 peer_ms) {
  reinet_u64 gone_ns;
  reinet_u32 way_us;
  if (!w->first_ns) {
    w->first_ns = w->window_ns = now_ns;
    w->peer_ms = peer_ms;
  }
  if ((reinet_s32)(peer_ms - w->peer_ms) < 0) return; /* another ACK overtook it */
  w->peer_ticks += peer_ms - w->peer_ms;
  w->peer_ms = peer_ms;
  way_us = (reinet_u32)((now_ns - w->first_ns) / 1000ULL - 1000ULL * w->peer_ticks);
  gone_ns = now_ns - w->window_ns;
  if (gone_ns >= REINET_WAY_BACK_NS) {
    w->before_us = gone_ns < 2 * REINET_WAY_BACK_NS ? w->least_us : way_us;
    w->least_us = way_us;
    w->window_ns = now_ns;
  }
  w->least_us = reinet_shorter_us(way_us, w->least_us);
  w->wait_sum_us += way_us - reinet_shorter_us(w->least_us, w->before_us);
  w->acks++;
}

/* The mean wait of the period's ACKs; 0 where none is known, as of a peer whose clock does not tick in milliseconds, as
 * those of Linux and most others do. While a queue of ACKs grows the peer seems slow, by up to half. */
static inline reinet_u64 reinet_way_back_wait_us(const struct reinet_way_back* w, reinet_u64 now_ns) {
  reinet_u64 took_ns = now_ns - w->first_ns, ticks_ns = w->peer_ticks * 1000000ULL;
  if (!w->acks || took_ns < REINET_TICKS_NS || ticks_ns < took_ns / 2 || ticks_ns / 11 > took_ns / 10) return 0;
  return w->wait_sum_us / w->acks;
}

struct reinet_period {
  reinet_u64 start_ns;                                   /* 0 = no ACK seen yet */
  reinet_u64 last_sign_ns;                               /* last ACK, or last record of a silence */
  reinet_u64 delivered_bytes, lost_bytes, retrans_bytes; /* lifetime counts at the start */
  reinet_u64 rtt_sum_us;
  reinet_u32 rtt_samples;
  reinet_u32 rtt_least_us;
  reinet_u32 rtt_last_us;
  reinet_u32 app_limited; /* seen at any ACK of the period */
  reinet_u32 restarted;   /* after an idle time, in this period */
  struct reinet_way_back way_back;
  struct reinet_ack last; /* the latest ACK, for records that no ACK triggers */
};

static inline void reinet_period_begin(struct reinet_period* p, const struct reinet_ack* a) {
  p->start_ns = a->time_ns;
  p->delivered_bytes = a->delivered_bytes;
  p->lost_bytes = a->lost_bytes;
  p->retrans_bytes = a->retrans_bytes;
  p->rtt_sum_us = 0;
  p->rtt_samples = 0;
  p->rtt_least_us = 0;
  p->rtt_last_us = 0;
  p->app_limited = 0;
  p->restarted = 0;
  p->way_back.wait_sum_us = 0;
  p->way_back.acks = 0;
}

/* Counters never run backwards in a record, even where SACK reneging makes the kernel's do so. */
static inline reinet_u64 reinet_growth(reinet_u64 now, reinet_u64 before) { return now > before ? now - before : 0; }

/* Fills all of out but cookie, target_us, cap_pkts and slot, which are the caller's. */
static inline void reinet_period_fill(const struct reinet_period* p, const struct reinet_ack* a, reinet_u64 now_ns,
                                      struct reinet_flow_stats* out) {
  reinet_u64 period_ns = reinet_growth(now_ns, p->start_ns);
  out->time_ns = now_ns;
  out->period_ns = period_ns;
  out->delivered_bytes = reinet_growth(a->delivered_bytes, p->delivered_bytes);
  out->lost_bytes = reinet_growth(a->lost_bytes, p->lost_bytes);
  out->retrans_bytes = reinet_growth(a->retrans_bytes, p->retrans_bytes);
  /* 2^64 / 10^9 = 18 GB in one period: no overflow at any real rate */
  out->delivery_rate_bytes_per_s = period_ns ? out->delivered_bytes * REINET_NS_PER_S / period_ns : 0;
  out->pacing_rate_bytes_per_s = a->pacing_rate_bytes_per_s;
  out->ack_wait_us = reinet_way_back_wait_us(&p->way_back, a->time_ns);
  out->rtt_samples = p->rtt_samples;
  out->rtt_mean_us = p->rtt_samples ? (reinet_u32)(p->rtt_sum_us / p->rtt_samples) : 0;
  out->rtt_last_us = p->rtt_last_us;
  out->rtt_least_us = p->rtt_least_us;
  out->srtt_us = a->srtt_us;
  out->min_rtt_us = a->min_rtt_us;
  out->cwnd_pkts = a->cwnd_pkts;
  out->ssthresh_pkts = a->ssthresh_pkts;
  out->inflight_pkts = a->inflight_pkts;
  out->mss_bytes = a->mss_bytes;
  out->flags = (a->flags & ~(reinet_u32)REINET_FLAG_APP_LIMITED) | (p->app_limited ? REINET_FLAG_APP_LIMITED : 0) |
               (p->restarted ? REINET_FLAG_RESTARTED : 0);
}

/* Takes the ACK that the caller has put into p->last. Returns 1 and fills out when it ends a period. */
static inline int reinet_period_on_last(struct reinet_period* p, const struct reinet_period_config* config,
                                        struct reinet_flow_stats* out) {
  const struct reinet_ack* a = &p->last;
  if (!p->start_ns) reinet_period_begin(p, a);
  p->last_sign_ns = a->time_ns;
  if (a->rtt_us >= 0) {
    reinet_u32 rtt_us = (reinet_u32)a->rtt_us;
    if (!p->rtt_samples || rtt_us < p->rtt_least_us) p->rtt_least_us = rtt_us;
    p->rtt_last_us = rtt_us;
    p->rtt_sum_us += rtt_us;
    p->rtt_samples++;
  }
  if (a->peer_ms) reinet_way_back_take(&p->way_back, a->time_ns, (reinet_u32)a->peer_ms);
  if (a->flags & REINET_FLAG_APP_LIMITED) p->app_limited = 1;
  if (reinet_growth(a->time_ns, p->start_ns) < config->min_period_ns || a->time_ns == p->start_ns) return 0;
  if (config->packet_timed && a->newest_acked_sent_ns < p->start_ns) return 0;
  reinet_period_fill(p, a, a->time_ns, out);
  if (!p->rtt_samples) out->flags |= REINET_FLAG_NO_SAMPLE;
  reinet_period_begin(p, a);
  return 1;
}

/* The same for an ACK elsewhere. */
static inline int reinet_period_on_ack(struct reinet_period* p, const struct reinet_period_config* config,
                                       const struct reinet_ack* a, struct reinet_flow_stats* out) {
  p->last = *a;
  return reinet_period_on_last(p, config, out);
}

/* Tells whether an idle time is a pause of the application's, long enough for what it had sent to have drained. */
static inline int reinet_is_pause(reinet_u64 idle_ns, reinet_u64 srtt_us) {
  return idle_ns * REINET_IDLE_PARTS > srtt_us * 1000ULL;
}

/* Takes the start of a transmission after an idle time: neither the silence nor the period counts the idle time. The
 * period moves on by it instead of starting anew, so that short bursts add up to a period and a flow whose RTT is below
 * min_period_ns is heard of too. An idle time above a part of the smoothed RTT is told of in the record: all that the
 * flow had sent was acknowledged, so there is no queue of its own any more. A sender whose window is acknowledged at
 * once has nothing outstanding for as long as it takes to send again, far less than that part.
 */
static inline void reinet_period_on_restart(struct reinet_period* p, reinet_u64 now_ns) {
  reinet_u64 idle_ns = reinet_growth(now_ns, p->last_sign_ns);
  if (p->start_ns) {
    p->start_ns += idle_ns;
    if (reinet_is_pause(idle_ns, p->last.srtt_us)) p->restarted = 1;
  }
  p->last_sign_ns = now_ns;
}

/* Takes the time. Returns 1 and fills out when a silence is to be reported; outstanding = data awaits an ACK. */
static inline int reinet_period_on_tick(struct reinet_period* p, reinet_u64 now_ns, int outstanding,
                                        struct reinet_flow_stats* out) {
  if (!outstanding || !p->start_ns || reinet_growth(now_ns, p->last_sign_ns) < REINET_SILENCE_NS) return 0;
  p->last_sign_ns = now_ns;
  reinet_period_fill(p, &p->last, now_ns, out);
  out->flags |= REINET_FLAG_NO_SAMPLE | REINET_FLAG_SILENCE;
  return 1;
}

#endif
