/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The period: every ACK of a flow is fed to it, and a record goes out when one ends.
 */
#ifndef REINET_PERIOD_BPF_H
#define REINET_PERIOD_BPF_H

#include "core/peers/peer.h"
#include "kshim/bpf/cap.bpf.h"

/* One copy of the rule in this object, for live flows and for replay. */
static __noinline int period_on_ack(struct reinet_period *period, const struct reinet_period_config *config,
                                    const struct reinet_ack *ack, struct reinet_flow_stats *record) {
  return reinet_period_on_ack(period, config, ack, record);
}

static __u32 flags_of(const struct tcp_sock *tp) {
  return (tp->app_limited ? REINET_FLAG_APP_LIMITED : 0) | (ca_state(tp) >= TCP_CA_CWR ? REINET_FLAG_IN_RECOVERY : 0) |
         (tp->snd_cwnd < tp->snd_ssthresh ? REINET_FLAG_SLOW_START : 0);
}

/* Both times are the stack's own microseconds, so "sent after the period began" compares like with like. */
static void read_ack(const struct tcp_sock *tp, __s32 rtt_us, struct reinet_ack *ack) {
  ack->time_ns = tp->tcp_mstamp * NSEC_PER_USEC;
  ack->newest_acked_sent_ns = tp->first_tx_mstamp * NSEC_PER_USEC;
  ack->delivered_bytes = tp->bytes_acked + (__u64)tp->sacked_out * tp->mss_cache;
  ack->lost_bytes = (__u64)tp->lost * tp->mss_cache;
  ack->retrans_bytes = tp->bytes_retrans;
  ack->pacing_rate_bytes_per_s = tp->inet_conn.icsk_inet.sk.sk_pacing_rate;
  ack->peer_ms = tp->rx_opt.rcv_tsval;
  ack->rtt_us = rtt_us;
  ack->srtt_us = tp->srtt_us >> 3;
  ack->min_rtt_us = tp->rtt_min.s[0].v;
  ack->cwnd_pkts = tp->snd_cwnd;
  ack->ssthresh_pkts = tp->snd_ssthresh;
  ack->inflight_pkts = in_flight_pkts(tp);
  ack->mss_bytes = tp->mss_cache;
  ack->flags = flags_of(tp);
}

static __u64 peer_of(const struct tcp_sock *tp) {
  const struct sock_common *skc = &tp->inet_conn.icsk_inet.sk.__sk_common;

  if (skc->skc_family == AF_INET6 && bpf_core_field_exists(skc->skc_v6_daddr)) {
    const __u32 *from = skc->skc_v6_daddr.in6_u.u6_addr32;
    const __u32 words[4] = {from[0], from[1], from[2], from[3]};

    return reinet_peer_of_v6(words);
  }
  return skc->skc_family == AF_INET ? reinet_peer_of_v4(skc->skc_daddr) : 0;
}

static void take_ack(struct tcp_sock *tp, struct reinet_slot *slot, __u32 index, __s32 rtt_us,
                     enum reinet_algorithm algorithm) {
  struct reinet_period_config config = {period_config.min_period_ns, period_config.packet_timed, 0};
  const struct reinet_cap *cap = cap_of(index);
  struct reinet_flow_stats record = {};
  struct reinet_ack ack;
  int ended;

  read_ack(tp, rtt_us, &ack);
  if (algorithm == REINET_BBR && tp->app_limited == slot->cap_limited_until)
    ack.flags &= ~(__u32)REINET_FLAG_APP_LIMITED;
  record_event(slot, REINET_EVENT_ACK, &ack);
  write_begin(slot);
  slot->outstanding = tp->packets_out != 0;
  ended = period_on_ack(&slot->period, &config, &ack, &record);
  write_end(slot);
  if (!ended || !cap)
    return;
  if (record.flags & REINET_FLAG_RESTARTED)
    WRITE_ONCE(slot->void_lease, READ_ONCE(cap->lease));
  record.cookie = slot->cookie;
  record.slot = index;
  record.peer = peer_of(tp);
  lease_of_owner(slot, cap, &record.target_us);
  record.cap_pkts = cap_in_force_pkts(slot, cap);
  send_record(&record);
}

/* Whether idle flows of this network namespace begin anew: net.ipv4.tcp_slow_start_after_idle, which servers often
 * switch off; then an idle time leaves the window as it is.
 */
static bool idle_flows_begin_anew(const struct tcp_sock *tp) {
  const struct net *net = tp->inet_conn.icsk_inet.sk.__sk_common.skc_net.net;

  return !bpf_core_field_exists(net->ipv4.sysctl_tcp_slow_start_after_idle) ||
         net->ipv4.sysctl_tcp_slow_start_after_idle;
}

/* The kernel says that data flows again just after it has halved the capped window for the idle time, and before it
 * notes that something was sent.
 */
static void give_back(struct tcp_sock *tp, struct reinet_slot *slot) {
  __u32 idle = idle_flows_begin_anew(tp) ? (__u32)bpf_jiffies64() - tp->lsndtime : 0;
  __u32 cwnd_pkts = reinet_withheld_given_back_pkts(&slot->withheld, tp->snd_cwnd, idle);

  tp->snd_cwnd = cwnd_pkts < tp->snd_cwnd_clamp ? cwnd_pkts : tp->snd_cwnd_clamp;
}

/* Data starts to flow again with nothing outstanding. The event also comes with the retransmission after a timeout,
 * where all that is outstanding counts as lost; that is no idle time, and a silence must go on being one.
 */
static void take_restart(struct tcp_sock *tp) {
  struct reinet_ack restart = {};
  struct reinet_slot *slot;
  __u32 index;

  if (tp->packets_out)
    return;
  slot = slot_of((struct sock *)tp, &index);
  if (!slot)
    return;
  restart.time_ns = tp->tcp_mstamp * NSEC_PER_USEC;
  record_event(slot, REINET_EVENT_RESTART, &restart);
  write_begin(slot);
  slot->outstanding = 1;
  reinet_period_on_restart(&slot->period, restart.time_ns);
  write_end(slot);
  if (slot->period.restarted && slot->withheld.cwnd_pkts)
    give_back(tp, slot);
}

#endif
