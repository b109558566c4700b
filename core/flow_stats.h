/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The records that cross the kernel's border, in plain C, and their only definition: BPF and C++ include this file,
 * NumPy's dtypes are made from the field lists below (core/bindings.cpp).
 *
 * Times are CLOCK_MONOTONIC. Packets are segments of mss_bytes. Every field is naturally aligned, so that no compiler
 * inserts padding; 64-bit fields come first.
 */
#ifndef REINET_FLOW_STATS_H
#define REINET_FLOW_STATS_H

#ifdef __cplusplus
#include <cstdint>
typedef std::uint64_t reinet_u64;
typedef std::uint32_t reinet_u32;
typedef std::int32_t reinet_s32;
#else
typedef unsigned long long reinet_u64;
typedef unsigned int reinet_u32;
typedef int reinet_s32;
#endif

/* One record per flow and period.          type  field                       meaning */
#define REINET_FLOW_STATS_FIELDS(X)                                                                           \
  X(u64, cookie)                    /* names the flow for its life (bpf_get_socket_cookie) */                 \
  X(u64, time_ns)                   /* end of the period */                                                   \
  X(u64, period_ns)                 /* length of the period */                                                \
  X(u64, delivery_rate_bytes_per_s) /* newly delivered bytes / length of the period */                        \
  X(u64, delivered_bytes)           /* delivered in this period, cumulatively and selectively acknowledged */ \
  X(u64, lost_bytes)                /* marked lost in this period */                                          \
  X(u64, retrans_bytes)             /* retransmitted in this period */                                        \
  X(u64, pacing_rate_bytes_per_s)   /* sk_pacing_rate; all ones = unlimited */                                \
  X(u64, ack_wait_us)               /* mean wait of the period's ACKs on their way back, 0 = none known */    \
  X(u64, peer)                      /* names the address of the flow's peer, 0 = unknown */                   \
  X(u64, peer_delivered_bytes)      /* delivered meanwhile by all capped flows to it, 0 = unknown */          \
  X(u64, share_bytes)               /* of these, by the flow's share in the last second; 0 = unknown */       \
  X(u32, rtt_mean_us)               /* mean of the period's valid RTT samples, 0 when there is none */        \
  X(u32, rtt_samples)               /* their number */                                                        \
  X(u32, rtt_last_us)               /* the latest of them, 0 when there is none */                            \
  X(u32, rtt_least_us)              /* the smallest of them, 0 when there is none */                          \
  X(u32, srtt_us)                   /* the kernel's smoothed RTT */                                           \
  X(u32, min_rtt_us)                /* the kernel's windowed minimum, tcp_min_rtt() */                        \
  X(u32, cwnd_pkts)                 /* snd_cwnd, after the cap */                                             \
  X(u32, ssthresh_pkts)             /* snd_ssthresh */                                                        \
  X(u32, inflight_pkts)             /* tcp_packets_in_flight() */                                             \
  X(u32, mss_bytes)                 /* mss_cache */                                                           \
  X(u32, target_us)                 /* the delay asked for: RTT, not queueing delay; 0 = none set */          \
  X(u32, cap_pkts)                  /* cap in force at the end of the period, 0 = none */                     \
  X(u32, flags)                     /* REINET_FLAG_* */                                                       \
  X(u32, slot)                      /* index of the flow in the shim's cap table */

/* What one ACK shows of a connection: its counters as the ACK is processed; cwnd_pkts after the cap. */
#define REINET_ACK_FIELDS(X)                                                                         \
  X(u64, time_ns)              /* when the ACK was processed */                                      \
  X(u64, newest_acked_sent_ns) /* send time of the most recently sent packet acknowledged so far */  \
  X(u64, delivered_bytes)      /* lifetime count, cumulatively and selectively acknowledged */       \
  X(u64, lost_bytes)           /* lifetime count */                                                  \
  X(u64, retrans_bytes)        /* lifetime count */                                                  \
  X(u64, pacing_rate_bytes_per_s)                                                                    \
  X(u64, peer_ms) /* the peer's clock as it sent the ACK: its timestamp (RFC 7323), 0 = none came */ \
  X(s32, rtt_us)  /* this ACK's RTT sample, negative = none (Karn's rule) */                         \
  X(u32, srtt_us)                                                                                    \
  X(u32, min_rtt_us)                                                                                 \
  X(u32, cwnd_pkts)                                                                                  \
  X(u32, ssthresh_pkts)                                                                              \
  X(u32, inflight_pkts)                                                                              \
  X(u32, mss_bytes)                                                                                  \
  X(u32, flags) /* APP_LIMITED, IN_RECOVERY and SLOW_START as they stand at this ACK */

#define REINET_DECLARE_FIELD(type, name) reinet_##type name;
struct reinet_flow_stats {
  REINET_FLOW_STATS_FIELDS(REINET_DECLARE_FIELD)
};
struct reinet_ack {
  REINET_ACK_FIELDS(REINET_DECLARE_FIELD)
};
#undef REINET_DECLARE_FIELD

#define REINET_FLAGS(X)                                                                                    \
  X(APP_LIMITED, 0x01) /* the application, not cwnd, limited the flow in this period */                    \
  X(IN_RECOVERY, 0x02) /* CWR, Recovery or Loss: cwnd belongs to PRR until it ends */                      \
  X(SLOW_START, 0x04)  /* cwnd below ssthresh */                                                           \
  X(NO_SAMPLE, 0x08)   /* no RTT sample: no decision, no history entry, no replay entry */                 \
  X(CLOSED, 0x10)      /* the flow's last record; only cookie, slot and time_ns are meaningful */          \
  X(RESTARTED, 0x20)   /* in this period the flow began to send again after an idle time above srtt / 4 */ \
  X(COMPANY, 0x40)     /* another flow to this peer that may be capped was answered lately */              \
  X(SILENCE, 0x80)     /* no ACK came: the period goes on, and the next record tells of all of it again */ \
  X(RELATIVE, 0x100)   /* the target is told by the path's minimum RTT: with a longer path comes a later one */

#define REINET_DECLARE_FLAG(name, value) REINET_FLAG_##name = value,
enum reinet_flag { REINET_FLAGS(REINET_DECLARE_FLAG) };
#undef REINET_DECLARE_FLAG

#endif
