/* SPDX-License-Identifier: GPL-2.0-only
 *
 * What the loader sets before it loads the programs, and the memory that the programs share with it.
 */
#ifndef REINET_MAPS_BPF_H
#define REINET_MAPS_BPF_H

#include "kshim/bpf/kernel.h"

#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#include "kshim/slot.h"

/* Set by the loader before loading. */
const volatile struct reinet_period_config period_config = {REINET_MIN_PERIOD_NS, 1, 0};
const volatile __u32 default_target_us = 0;    /* of flows whose target nobody has set */
const volatile bool record_events = false;     /* costs a ring buffer entry per ACK */
const volatile bool sweeps_flows_only = false; /* of reinet_flows, which is another shim's then */
/* The loader puts the names in that it registers, and empties the entry of what the host cannot wrap. */
const volatile struct reinet_wrapped wrapped[REINET_ALGORITHMS] = {
    [REINET_CUBIC] = {"cubic", "reinet_cubic"},
    [REINET_RENO] = {"reno", "reinet_reno"},
    [REINET_BBR] = {"bbr", "reinet_bbr"},
};

/* A congestion control's own memory in its socket. */
struct reinet_known {
  __u64 own[CA_PRIV_WORDS];
};

/* The loader freezes what only the kernel writes, slots and counters: from then on no descriptor of the map, in
 * whosever hands, can write it or map it for writing.
 */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1); /* the loader's choice */
  __type(key, __u32);
  __type(value, struct reinet_slot);
} reinet_slots SEC(".maps");

/* The cap of each slot, by the same index. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1); /* as many as slots */
  __type(key, __u32);
  __type(value, struct reinet_cap);
} reinet_caps SEC(".maps");

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

/* What the congestion control of a socket knows that is being adopted, for as long as the switch takes. */
struct {
  __uint(type, BPF_MAP_TYPE_SK_STORAGE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, int);
  __type(value, struct reinet_known);
} reinet_known SEC(".maps");

/* The chosen cgroups, by their number; the value says nothing. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1); /* as many as are chosen */
  __type(key, __u64);
  __type(value, __u32);
} reinet_cgroups SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct reinet_control);
} reinet_control SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct reinet_counters);
} reinet_counters SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 4096); /* the loader's choice */
} reinet_records SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 4096); /* the loader's choice when events are recorded */
} reinet_events SEC(".maps");

#endif
