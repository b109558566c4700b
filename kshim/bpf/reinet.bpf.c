// SPDX-License-Identifier: GPL-2.0-only
/* reinet's kernel side: measures chosen TCP flows and keeps their congestion windows below leased caps.
 *
 *   On an established socket of a chosen cgroup:
 *     if it runs a wrapped congestion control and a slot is free: take the slot, switch it to the wrapper
 *   On every ACK of a chosen flow:
 *     let the wrapped algorithm do its work, then cwnd = min(cwnd, cap) while the cap's lease holds
 *     feed the ACK to the period; when that ends the period, send a FlowStats record
 *   On the flow's end: send a record that says so, give the slot back
 *
 *             sockops                  release
 *   [free] ------------> [chosen] --------------------> [free]
 *             cap written, lease holds:  [chosen, capped]
 *             lease over or cap of 0:    [chosen] again, by itself
 *
 * A wrapper adds a ceiling and nothing else: slow start, HyStart, growth, pacing, loss response and undo are the
 * algorithm's own functions, called as kfuncs on its own state in icsk_ca_priv. While PRR owns the window (CWR and
 * Recovery) the ceiling waits; BBR does without PRR. A flow without a slot runs the plain algorithm.
 *
 * To wrap one more algorithm: an enum and a table entry, its kfuncs, its callbacks.
 *
 * Every callback of a flow runs under its socket's lock, which serialises all writes to the kernel's part of a slot.
 */
#include "kshim/bpf/kernel.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <stdbool.h>

#include "kshim/slot.h"

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

char LICENSE[] SEC("license") = "GPL";

/* Set by the loader before loading. */
const volatile struct reinet_period_config period_config = {REINET_MIN_PERIOD_NS, 1, 0};
const volatile __u32 default_target_us = 0; /* of flows whose target nobody has set */
const volatile bool record_events = false;  /* costs a ring buffer entry per ACK */
/* The loader puts the names in that it registers, and empties the entry of what the host cannot wrap. */
const volatile struct reinet_wrapped wrapped[REINET_ALGORITHMS] = {
    [REINET_CUBIC] = {"cubic", "reinet_cubic"},
    [REINET_RENO] = {"reno", "reinet_reno"},
    [REINET_BBR] = {"bbr", "reinet_bbr"},
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1); /* the loader's choice */
  __type(key, __u32);
  __type(value, struct reinet_slot);
} reinet_slots SEC(".maps");

/* Indices of free slots. The last one given back is used first: the slots in use stay few and their memory warm. */
struct {
  __uint(type, BPF_MAP_TYPE_STACK);
  __uint(max_entries, 1); /* as many as slots */
  __type(value, __u32);
} reinet_free SEC(".maps");

/* The slot of a chosen socket. */
struct {
  __uint(type, BPF_MAP_TYPE_SK_STORAGE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, int);
  __type(value, __u32);
} reinet_flows SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct reinet_control);
} reinet_control SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 4096); /* the loader's choice */
} reinet_records SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 4096); /* the loader's choice when events are recorded */
} reinet_events SEC(".maps");

/* Weak: a host that lacks one algorithm still wraps the others. */
extern void cubictcp_init(struct sock *sk) __ksym __weak;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym __weak;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym __weak;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym __weak;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym __weak;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym __weak;

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym __weak;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym __weak;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym __weak; /* Cubic's too */

extern void bbr_init(struct sock *sk) __ksym __weak;
extern __u32 bbr_ssthresh(struct sock *sk) __ksym __weak;
extern void bbr_set_state(struct sock *sk, __u8 new_state) __ksym __weak;
extern void bbr_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym __weak;
extern __u32 bbr_min_tso_segs(struct sock *sk) __ksym __weak;
extern __u32 bbr_undo_cwnd(struct sock *sk) __ksym __weak;
extern __u32 bbr_sndbuf_expand(struct sock *sk) __ksym __weak;
/* Linux 6.10 gave cong_control two more arguments. libbpf refuses a whole object over a kfunc of another prototype,
 * even a weak one; so this file is built for either, and the loader takes the one that fits.
 */
#if REINET_CONG_CONTROL_ARGUMENTS == 4
extern void bbr_main(struct sock *sk, __u32 ack, int flag, const struct rate_sample *sample) __ksym __weak;
#else
extern void bbr_main(struct sock *sk, const struct rate_sample *sample) __ksym __weak;
#endif

/* ---- small helpers ---- */

static struct reinet_control *control(void) {
  __u32 zero = 0;
  return bpf_map_lookup_elem(&reinet_control, &zero);
}

#define COUNT(field)                                                                                                   \
  do {                                                                                                                 \
    struct reinet_control *c_ = control();                                                                             \
    if (c_)                                                                                                            \
      __sync_fetch_and_add(&c_->field, 1);                                                                             \
  } while (0)

static bool same_name(const char *a, const volatile char *b) {
  for (int i = 0; i < REINET_CC_NAME_BYTES; i++) {
    if (a[i] != b[i])
      return false;
    if (!a[i])
      break;
  }
  return true;
}

/* A helper takes no volatile memory, which the loader's constants are; so the name goes over the stack. */
#define SWITCH_TO(socket, name)                                                                                        \
  ({                                                                                                                   \
    char name_[REINET_CC_NAME_BYTES];                                                                                  \
    for (int i_ = 0; i_ < REINET_CC_NAME_BYTES; i_++)                                                                  \
      name_[i_] = (name)[i_];                                                                                          \
    bpf_setsockopt(socket, SOL_TCP, TCP_CONGESTION, name_, sizeof(name_));                                             \
  })

static struct reinet_slot *slot_of(struct sock *sk, __u32 *index) {
  __u32 *stored = bpf_sk_storage_get(&reinet_flows, sk, 0, 0);

  if (!stored)
    return NULL;
  *index = *stored;
  return bpf_map_lookup_elem(&reinet_slots, index);
}

/* The reader copies a period without a lock; an odd or changed sequence tells it to look again later. An atomic
 * operation whose result is used is a full barrier.
 */
static void move_sequence(struct reinet_slot *slot) {
  __u32 before = __sync_fetch_and_add(&slot->sequence, 1);

  barrier_var(before);
}

static void write_begin(struct reinet_slot *slot) { move_sequence(slot); }

static void write_end(struct reinet_slot *slot) { move_sequence(slot); }

static void send_record(const struct reinet_flow_stats *record) {
  if (bpf_ringbuf_output(&reinet_records, (void *)record, sizeof(*record), 0))
    COUNT(records_lost);
}

static void record_event(const struct reinet_slot *slot, enum reinet_event_kind kind, const struct reinet_ack *ack) {
  struct reinet_event *event;

  if (!record_events)
    return;
  event = bpf_ringbuf_reserve(&reinet_events, sizeof(*event), 0);
  if (!event) {
    COUNT(acks_lost);
    return;
  }
  event->cookie = slot->cookie;
  event->kind = kind;
  event->ack = *ack;
  bpf_ringbuf_submit(event, 0);
}

/* ---- the cap ---- */

static bool cap_is_for_owner(const struct reinet_slot *slot) { return READ_ONCE(slot->cap.cap_cookie) == slot->cookie; }

static __u32 cap_in_force_pkts(const struct reinet_slot *slot) {
  if (!cap_is_for_owner(slot) || bpf_ktime_get_ns() >= READ_ONCE(slot->cap.expires_ns))
    return 0;
  return READ_ONCE(slot->cap.cap_pkts);
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

static void apply_cap(struct tcp_sock *tp, const struct reinet_slot *slot, enum reinet_algorithm algorithm) {
  __u32 cap_pkts = cap_in_force_pkts(slot);

  if (cap_pkts && tp->snd_cwnd > cap_pkts && !prr_owns_window(tp, algorithm))
    tp->snd_cwnd = cap_pkts;
}

/* ---- the period ---- */

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
  ack->rtt_us = rtt_us;
  ack->srtt_us = tp->srtt_us >> 3;
  ack->min_rtt_us = tp->rtt_min.s[0].v;
  ack->cwnd_pkts = tp->snd_cwnd;
  ack->ssthresh_pkts = tp->snd_ssthresh;
  ack->inflight_pkts = tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
  ack->mss_bytes = tp->mss_cache;
  ack->flags = flags_of(tp);
}

static void take_ack(struct tcp_sock *tp, struct reinet_slot *slot, __u32 index, __s32 rtt_us) {
  struct reinet_period_config config = {period_config.min_period_ns, period_config.packet_timed, 0};
  struct reinet_flow_stats record = {};
  struct reinet_ack ack;
  int ended;

  read_ack(tp, rtt_us, &ack);
  record_event(slot, REINET_EVENT_ACK, &ack);
  write_begin(slot);
  slot->outstanding = tp->packets_out != 0;
  ended = period_on_ack(&slot->period, &config, &ack, &record);
  write_end(slot);
  if (!ended)
    return;
  record.cookie = slot->cookie;
  record.slot = index;
  record.target_us = cap_is_for_owner(slot) ? READ_ONCE(slot->cap.target_us) : default_target_us;
  record.cap_pkts = cap_in_force_pkts(slot);
  send_record(&record);
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
}

/* ---- a flow's beginning and end ---- */

static void free_slot(struct reinet_slot *slot, __u32 index) {
  WRITE_ONCE(slot->cookie, 0);
  bpf_map_push_elem(&reinet_free, &index, 0);
}

static void choose(struct bpf_sock_ops *ctx, struct bpf_sock *sk, const volatile struct reinet_wrapped *w) {
  struct reinet_slot *slot;
  __u32 *stored, index;

  if (bpf_map_pop_elem(&reinet_free, &index)) {
    COUNT(flows_without_slot);
    return;
  }
  slot = bpf_map_lookup_elem(&reinet_slots, &index);
  if (!slot)
    return; /* no index is out of range */
  stored = bpf_sk_storage_get(&reinet_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
  if (!stored) {
    free_slot(slot, index);
    COUNT(flows_not_switched);
    return;
  }
  *stored = index;
  write_begin(slot);
  slot->outstanding = 0;
  __builtin_memset(&slot->period, 0, sizeof(slot->period));
  WRITE_ONCE(slot->cookie, bpf_get_socket_cookie(ctx));
  write_end(slot);
  if (SWITCH_TO(ctx, w->wrapper)) {
    bpf_sk_storage_delete(&reinet_flows, sk);
    free_slot(slot, index);
    COUNT(flows_not_switched);
    return;
  }
  COUNT(flows_chosen);
}

static void consider(struct bpf_sock_ops *ctx) {
  char name[REINET_CC_NAME_BYTES] = {};
  struct bpf_sock *sk = ctx->sk;

  if (!sk || bpf_getsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
    return;
  if (bpf_sk_storage_get(&reinet_flows, sk, 0, 0))
    return;
  for (unsigned int i = 0; i < REINET_ALGORITHMS; i++) {
    /* A socket that was disconnected and connects again runs the wrapper already. */
    if (same_name(name, wrapped[i].plain) || same_name(name, wrapped[i].wrapper)) {
      choose(ctx, sk, &wrapped[i]);
      return;
    }
  }
}

SEC("sockops")
int reinet_choose(struct bpf_sock_ops *ctx) {
  if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
    consider(ctx);
  return 1;
}

/* The record goes out before the slot is free: a reader that sees the slot's owner gone finds the record waiting. */
static void end_flow(struct sock *sk) {
  struct reinet_flow_stats record = {};
  struct reinet_slot *slot;
  __u32 index;

  slot = slot_of(sk, &index);
  if (!slot)
    return;
  record.cookie = slot->cookie;
  record.slot = index;
  record.time_ns = bpf_ktime_get_ns();
  record.flags = REINET_FLAG_CLOSED;
  send_record(&record);
  bpf_sk_storage_delete(&reinet_flows, sk);
  free_slot(slot, index);
}

/* Asked to leave, a flow goes back to its own congestion control at its next ACK, in whatever network namespace it
 * lives; end_flow runs within the switch. Nothing may touch the slot afterwards.
 */
static void leave_if_asked(struct sock *sk, const volatile struct reinet_wrapped *w) {
  struct reinet_control *c = control();

  if (c && READ_ONCE(c->leaving) && !SWITCH_TO(sk, w->plain))
    __sync_fetch_and_add(&c->flows_switched_back, 1);
}

/* ---- what every wrapper does ----
 *
 * pkts_acked, on every ACK while data is outstanding, measures the flow. It comes before the algorithm sets the window
 * for that ACK, so the cap is applied a second time after that.
 */

static void on_pkts_acked(struct sock *sk, const struct ack_sample *sample, enum reinet_algorithm algorithm) {
  struct tcp_sock *tp = (struct tcp_sock *)sk;
  struct reinet_slot *slot;
  __u32 index;

  slot = slot_of(sk, &index);
  if (!slot)
    return;
  apply_cap(tp, slot, algorithm);
  take_ack(tp, slot, index, sample->rtt_us);
  leave_if_asked(sk, &wrapped[algorithm]);
}

static void on_window_set(struct sock *sk, enum reinet_algorithm algorithm) {
  struct reinet_slot *slot;
  __u32 index;

  slot = slot_of(sk, &index);
  if (slot)
    apply_cap((struct tcp_sock *)sk, slot, algorithm);
}

static void on_cwnd_event(struct sock *sk, enum tcp_ca_event event) {
  if (event == CA_EVENT_TX_START)
    take_restart((struct tcp_sock *)sk);
}

/* The wrappers: the loader finds the callbacks of each in the programs called after its structure and their member, and
 * registers the structure under the name that it chose.
 */

/* ---- Cubic ---- */

SEC("struct_ops")
void BPF_PROG(reinet_cubic_init, struct sock *sk) { cubictcp_init(sk); }

SEC("struct_ops")
void BPF_PROG(reinet_cubic_release, struct sock *sk) { end_flow(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_cubic_ssthresh, struct sock *sk) { return cubictcp_recalc_ssthresh(sk); }

/* Not called in CWR and Recovery. */
SEC("struct_ops")
void BPF_PROG(reinet_cubic_cong_avoid, struct sock *sk, __u32 ack, __u32 acked) {
  cubictcp_cong_avoid(sk, ack, acked);
  on_window_set(sk, REINET_CUBIC);
}

SEC("struct_ops")
void BPF_PROG(reinet_cubic_set_state, struct sock *sk, __u8 new_state) { cubictcp_state(sk, new_state); }

SEC("struct_ops")
void BPF_PROG(reinet_cubic_cwnd_event, struct sock *sk, enum tcp_ca_event event) {
  cubictcp_cwnd_event(sk, event);
  on_cwnd_event(sk, event);
}

SEC("struct_ops")
void BPF_PROG(reinet_cubic_pkts_acked, struct sock *sk, const struct ack_sample *sample) {
  cubictcp_acked(sk, sample);
  on_pkts_acked(sk, sample, REINET_CUBIC);
}

SEC("struct_ops")
__u32 BPF_PROG(reinet_cubic_undo_cwnd, struct sock *sk) { return tcp_reno_undo_cwnd(sk); }

SEC(".struct_ops")
struct tcp_congestion_ops reinet_cubic = {
    .init = (void *)reinet_cubic_init,
    .release = (void *)reinet_cubic_release,
    .ssthresh = (void *)reinet_cubic_ssthresh,
    .cong_avoid = (void *)reinet_cubic_cong_avoid,
    .set_state = (void *)reinet_cubic_set_state,
    .cwnd_event = (void *)reinet_cubic_cwnd_event,
    .pkts_acked = (void *)reinet_cubic_pkts_acked,
    .undo_cwnd = (void *)reinet_cubic_undo_cwnd,
    .name = "reinet_cubic",
};

/* ---- Reno: no state of its own ---- */

SEC("struct_ops")
void BPF_PROG(reinet_reno_release, struct sock *sk) { end_flow(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_reno_ssthresh, struct sock *sk) { return tcp_reno_ssthresh(sk); }

/* Not called in CWR and Recovery. */
SEC("struct_ops")
void BPF_PROG(reinet_reno_cong_avoid, struct sock *sk, __u32 ack, __u32 acked) {
  tcp_reno_cong_avoid(sk, ack, acked);
  on_window_set(sk, REINET_RENO);
}

SEC("struct_ops")
void BPF_PROG(reinet_reno_cwnd_event, struct sock *sk, enum tcp_ca_event event) { on_cwnd_event(sk, event); }

SEC("struct_ops")
void BPF_PROG(reinet_reno_pkts_acked, struct sock *sk, const struct ack_sample *sample) {
  on_pkts_acked(sk, sample, REINET_RENO);
}

SEC("struct_ops")
__u32 BPF_PROG(reinet_reno_undo_cwnd, struct sock *sk) { return tcp_reno_undo_cwnd(sk); }

SEC(".struct_ops")
struct tcp_congestion_ops reinet_reno = {
    .release = (void *)reinet_reno_release,
    .ssthresh = (void *)reinet_reno_ssthresh,
    .cong_avoid = (void *)reinet_reno_cong_avoid,
    .cwnd_event = (void *)reinet_reno_cwnd_event,
    .pkts_acked = (void *)reinet_reno_pkts_acked,
    .undo_cwnd = (void *)reinet_reno_undo_cwnd,
    .name = "reinet_reno",
};

/* ---- BBR ----
 *
 * Sets window and pacing rate in cong_control. What its model learned under a cap outlives it: the bandwidth above is
 * found again by BBR's own probing, not at once. get_info is closed to BPF, so ss shows no model.
 */

SEC("struct_ops")
void BPF_PROG(reinet_bbr_init, struct sock *sk) { bbr_init(sk); }

SEC("struct_ops")
void BPF_PROG(reinet_bbr_release, struct sock *sk) { end_flow(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_bbr_ssthresh, struct sock *sk) { return bbr_ssthresh(sk); }

/* Called on every ACK, in every state. The pacing rate stays BBR's; where the cap binds, the window is the tighter. */
SEC("struct_ops")
#if REINET_CONG_CONTROL_ARGUMENTS == 4
void BPF_PROG(reinet_bbr_cong_control, struct sock *sk, __u32 ack, int flag, const struct rate_sample *sample) {
  bbr_main(sk, ack, flag, sample);
#else
void BPF_PROG(reinet_bbr_cong_control, struct sock *sk, const struct rate_sample *sample) {
  bbr_main(sk, sample);
#endif
  on_window_set(sk, REINET_BBR);
}

SEC("struct_ops")
void BPF_PROG(reinet_bbr_set_state, struct sock *sk, __u8 new_state) { bbr_set_state(sk, new_state); }

SEC("struct_ops")
void BPF_PROG(reinet_bbr_cwnd_event, struct sock *sk, enum tcp_ca_event event) {
  bbr_cwnd_event(sk, event);
  on_cwnd_event(sk, event);
}

SEC("struct_ops")
void BPF_PROG(reinet_bbr_pkts_acked, struct sock *sk, const struct ack_sample *sample) {
  on_pkts_acked(sk, sample, REINET_BBR);
}

SEC("struct_ops")
__u32 BPF_PROG(reinet_bbr_min_tso_segs, struct sock *sk) { return bbr_min_tso_segs(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_bbr_undo_cwnd, struct sock *sk) { return bbr_undo_cwnd(sk); }

SEC("struct_ops")
__u32 BPF_PROG(reinet_bbr_sndbuf_expand, struct sock *sk) { return bbr_sndbuf_expand(sk); }

SEC(".struct_ops")
struct tcp_congestion_ops reinet_bbr = {
    .init = (void *)reinet_bbr_init,
    .release = (void *)reinet_bbr_release,
    .ssthresh = (void *)reinet_bbr_ssthresh,
    .cong_control = (void *)reinet_bbr_cong_control,
    .set_state = (void *)reinet_bbr_set_state,
    .cwnd_event = (void *)reinet_bbr_cwnd_event,
    .pkts_acked = (void *)reinet_bbr_pkts_acked,
    .min_tso_segs = (void *)reinet_bbr_min_tso_segs,
    .undo_cwnd = (void *)reinet_bbr_undo_cwnd,
    .sndbuf_expand = (void *)reinet_bbr_sndbuf_expand,
    .name = "reinet_bbr",
};

/* ---- run by the loader ---- */

/* Switches every socket of this network namespace that runs a wrapper back, idle ones too. */
SEC("iter/tcp")
int reinet_sweep(struct bpf_iter__tcp *ctx) {
  char name[REINET_CC_NAME_BYTES] = {};
  struct sock_common *skc = ctx->sk_common;
  struct tcp_sock *tp;

  if (!skc)
    return 0;
  tp = bpf_skc_to_tcp_sock(skc);
  if (!tp || bpf_getsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
    return 0;
  for (unsigned int i = 0; i < REINET_ALGORITHMS; i++) {
    if (same_name(name, wrapped[i].wrapper)) {
      if (!SWITCH_TO(tp, wrapped[i].plain))
        COUNT(flows_switched_back);
      return 0;
    }
  }
  return 0;
}

/* Moves one period by one recorded event, by the code that live flows run. */
SEC("syscall")
int reinet_replay(struct reinet_replay *ctx) {
  struct reinet_period_config config = {period_config.min_period_ns, period_config.packet_timed, 0};
  struct reinet_period period = ctx->period;
  struct reinet_flow_stats record = {};
  struct reinet_ack ack = ctx->event.ack;

  ctx->ended = 0;
  if (ctx->event.kind == REINET_EVENT_RESTART)
    reinet_period_on_restart(&period, ack.time_ns);
  else
    ctx->ended = period_on_ack(&period, &config, &ack, &record);
  ctx->period = period;
  ctx->record = record;
  return 0;
}
