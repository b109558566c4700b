/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The cap: whether one is in force on a flow, and what it does to the window.
 */
#ifndef REINET_CAP_BPF_H
#define REINET_CAP_BPF_H

#include "kshim/bpf/kernel.h"

#include <bpf/bpf_core_read.h>

#include "kshim/bpf/slot.bpf.h"

/* There is a cap for every slot; the verifier wants to be told. */
static const struct reinet_cap *cap_of(__u32 index) { return bpf_map_lookup_elem(&reinet_caps, &index); }

/* Returns the lease of the slot's owner, 0 = none, and fills the flow's target. */
static __u64 lease_of_owner(const struct reinet_slot *slot, const struct reinet_cap *cap, __u32 *target_us) {
  __u64 lease;

  if (reinet_cap_read(cap, slot->cookie, &lease, target_us))
    return lease;
  *target_us = default_target_us;
  return 0;
}

/* The first look costs no barrier: most flows have no cap most of the time. */
static __u32 cap_in_force_pkts(struct reinet_slot *slot, const struct reinet_cap *cap) {
  __u64 lease = READ_ONCE(cap->lease), now_ns;
  __u32 unused;

  if (!lease || reinet_lease_void(lease, slot->void_lease, &slot->period))
    return 0;
  now_ns = bpf_ktime_get_ns();
  if (reinet_lease_too_long(lease, now_ns)) {
    WRITE_ONCE(slot->void_lease, lease);
    COUNT(leases_too_long);
    return 0;
  }
  if (!reinet_lease_cap_pkts(lease, now_ns))
    return 0;
  return reinet_lease_cap_pkts(lease_of_owner(slot, cap, &unused), now_ns);
}

static __u8 ca_state(const struct tcp_sock *tp) {
  const struct inet_connection_sock *icsk = &tp->inet_conn;

  return BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state);
}

/* An algorithm that has a cong_control sets the window itself in every state; PRR sets it for the others. */
static bool prr_owns_window(const struct tcp_sock *tp, enum reinet_algorithm algorithm) {
  __u8 state = ca_state(tp);

  return algorithm != REINET_BBR && (state == TCP_CA_CWR || state == TCP_CA_Recovery);
}

static __u32 in_flight_pkts(const struct tcp_sock *tp) {
  return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}

/* BBR's start-up ends when rates no longer grow, whatever it was that kept them down: under a cap it would end at the
 * cap, and a flow of short answers, which never shows a higher rate, would stay there. So none acts until it is over.
 */
static bool bbr_starts_up(const struct tcp_sock *tp) {
  const struct bbr *bbr = (const void *)tp->inet_conn.icsk_ca_priv;

  return bpf_core_field_exists(bbr->full_bw_reached) && !BPF_CORE_READ_BITFIELD(bbr, full_bw_reached);
}

/* Linux lets the programs write this from 6.6 on; the object that is built for 6.10 and later does. Where the start-up
 * cannot be told, nothing is marked: marked rates would never end it.
 */
static void note_limited(struct tcp_sock *tp, struct reinet_slot *slot) {
#if REINET_CONG_CONTROL_ARGUMENTS == 4
  if (!bpf_core_field_exists(((struct bbr *)0)->full_bw_reached))
    return;
  tp->app_limited =
      reinet_cap_limited_until(&slot->cap_limited_until, tp->app_limited, tp->delivered, in_flight_pkts(tp));
#endif
}

static void note_outage(const struct tcp_sock *tp, struct reinet_slot *slot, __s32 rtt_us) {
  reinet_outage_on_ack(&slot->outage, tp->tcp_mstamp, rtt_us, tp->rtt_min.s[0].v, tp->snd_una, tp->snd_nxt);
}

/* A cap forbids a window and must not unlearn it: ssthresh remembers what the algorithm had come to, so that under a
 * higher cap, or under none, slow start leads back there within a few round trips. By congestion avoidance alone a flow
 * of a long path would pay for seconds for a cap that was too low for a moment. BBR's window follows its model, which
 * is not to learn the cap. in_force_pkts: the window until this ACK, before the algorithm let it grow.
 */
static void apply_cap(struct tcp_sock *tp, struct reinet_slot *slot, __u32 index, enum reinet_algorithm algorithm,
                      __u32 in_force_pkts) {
  const struct reinet_cap *cap = cap_of(index);
  __u32 cap_pkts = cap ? cap_in_force_pkts(slot, cap) : 0;

  if (!cap_pkts)
    reinet_withheld_forget(&slot->withheld);
  if (!cap_pkts || tp->snd_cwnd <= cap_pkts || prr_owns_window(tp, algorithm) || asked_to_leave())
    return;
  if (algorithm == REINET_BBR && bbr_starts_up(tp))
    return;
  if (algorithm != REINET_BBR) {
    if (tp->snd_ssthresh < tp->snd_cwnd)
      tp->snd_ssthresh = tp->snd_cwnd;
    reinet_withheld_on_cap(&slot->withheld, in_force_pkts, cap_pkts, tp->delivered, tp->inet_conn.icsk_rto);
  } else {
    note_limited(tp, slot);
  }
  cap_pkts = reinet_outage_capped_pkts(&slot->outage, cap_pkts, in_flight_pkts(tp), tp->snd_una, tp->snd_nxt);
  if (tp->snd_cwnd > cap_pkts)
    tp->snd_cwnd = cap_pkts;
}

#endif
