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
 *             sockops, or adoption     release
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
#include "kshim/bpf/wrap_cubic.bpf.h"
#include "kshim/bpf/wrap_reno.bpf.h"
#include "kshim/bpf/wrap_bbr.bpf.h"
#include "kshim/bpf/loader.bpf.h"

char LICENSE[] SEC("license") = "GPL";
