/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The kernel's types, as far as they are used: libbpf finds each field by its name in the running kernel (CO-RE), so
 * the order and the fields left out do not matter.
 */
#ifndef REINET_KERNEL_H
#define REINET_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>

#define AF_INET 2
#define AF_INET6 10
#define SOL_TCP 6
#define TCP_CONGESTION 13
#define NSEC_PER_USEC 1000ULL
#define CA_PRIV_WORDS 13 /* of 8 bytes: ICSK_CA_PRIV_SIZE, since 4.16 */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
  __u64 id; /* of a cgroup's folder: what stat(2) calls st_ino */
};

struct cgroup_subsys_state {
  struct cgroup *cgroup;
  struct cgroup_subsys_state *parent;
};

struct cgroup {
  struct cgroup_subsys_state self;
  struct kernfs_node *kn;
};

struct sock_cgroup_data {
  struct cgroup *cgroup;
};

struct ns_common {
  unsigned int inum; /* the inode that /proc/PID/ns/net shows */
};

struct netns_ipv4 {
  __u8 sysctl_tcp_slow_start_after_idle;
};

struct net {
  struct ns_common ns;
  struct netns_ipv4 ipv4;
};

typedef struct {
  struct net *net;
} possible_net_t;

struct in6_addr {
  union {
    __u32 u6_addr32[4];
  } in6_u;
};

struct sock_common {
  __u32 skc_daddr;
  unsigned short skc_family;
  struct in6_addr skc_v6_daddr; /* where the kernel knows IPv6 */
  volatile unsigned char skc_state;
  possible_net_t skc_net;
};

struct sock {
  struct sock_common __sk_common;
  struct sock_cgroup_data sk_cgrp_data;
  unsigned long sk_pacing_rate; /* bytes/s; all ones = unlimited */
};

struct inet_sock {
  struct sock sk;
};

struct inet_connection_sock {
  struct inet_sock icsk_inet;
  __u32 icsk_rto; /* jiffies */
  __u8 icsk_ca_state : 5;
  __u64 icsk_ca_priv[CA_PRIV_WORDS];
};

struct minmax_sample {
  __u32 v;
};

struct minmax {
  struct minmax_sample s[3];
};

struct tcp_options_received {
  __u32 rcv_tsval; /* the peer's latest timestamp, 0 = none came */
};

struct tcp_sock {
  struct inet_connection_sock inet_conn;
  __u64 tcp_mstamp;      /* us, CLOCK_MONOTONIC: now, as the stack last looked */
  __u64 first_tx_mstamp; /* us: send time of the most recently sent packet acknowledged so far */
  __u64 bytes_acked;
  __u64 bytes_retrans;
  __u32 snd_una; /* first byte that awaits an ACK */
  __u32 snd_nxt; /* next byte to be sent */
  __u32 mss_cache;
  __u32 srtt_us; /* 8 times the smoothed RTT */
  struct minmax rtt_min;
  struct tcp_options_received rx_opt;
  __u32 lsndtime; /* jiffies: when data was last sent */
  __u32 snd_cwnd;
  __u32 snd_cwnd_clamp;
  __u32 snd_ssthresh;
  __u32 prior_cwnd;  /* when the latest reduction began */
  __u32 undo_marker; /* snd_una then, 0 = it was undone, or cannot be (CWR) */
  __u32 packets_out;
  __u32 sacked_out;
  __u32 lost_out;
  __u32 retrans_out;
  __u32 lost;        /* packets, lifetime */
  __u32 delivered;   /* packets, lifetime */
  __u32 app_limited; /* what is delivered until then is, 0 = nothing */
};

/* BBR's own memory, in icsk_ca_priv. */
struct bbr {
  __u32 full_bw_reached : 1; /* its start-up is over */
};

struct ack_sample {
  __s32 rtt_us;
};

struct rate_sample {
  __s32 delivered;
};

enum tcp_ca_state { TCP_CA_Open, TCP_CA_Disorder, TCP_CA_CWR, TCP_CA_Recovery, TCP_CA_Loss };

enum tcp_ca_event { CA_EVENT_TX_START };

struct tcp_congestion_ops {
  void (*init)(struct sock *sk);
  void (*release)(struct sock *sk);
  __u32 (*ssthresh)(struct sock *sk);
  void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
  void (*cong_control)(struct sock *sk, __u32 ack, int flag, const struct rate_sample *sample); /* since 6.10 */
  void (*set_state)(struct sock *sk, __u8 new_state);
/* Linux 7.1 tells with an operation of its own that a flow with nothing outstanding sends again, and has no longer the
 * algorithms' functions for cwnd_event, of which that was one event. libbpf 1.1 refuses a member that the kernel's
 * structure lacks, so this too is built for either.
 */
#if REINET_TX_START_OPERATION
  void (*cwnd_event_tx_start)(struct sock *sk);
#else
  void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
#endif
  void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
  __u32 (*min_tso_segs)(struct sock *sk);
  __u32 (*undo_cwnd)(struct sock *sk);
  __u32 (*sndbuf_expand)(struct sock *sk);
  char name[16];
};

struct bpf_iter_meta {
  struct seq_file *seq;
};

struct bpf_iter__tcp {
  struct bpf_iter_meta *meta;
  struct sock_common *sk_common;
};

#pragma clang attribute pop

#endif
