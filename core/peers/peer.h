/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * How a record names the peer of its flow, in plain C: the BPF programs and the gate of alcc/ include it. Of IPv6 it is
 * the network of 64 bits: the connections of one client may have several addresses of it, and share its access link.
 */
#ifndef REINET_PEER_H
#define REINET_PEER_H

#include "core/flow_stats.h"

/* All peers, for flows that share a queue whoever their peers are. */
#define REINET_PEER_EVERYBODY 1ULL

/* The two highest bits of a name that a program gives (alcc/processes.py), as none that is made here has them. */
#define REINET_PEER_OF_PROGRAM (1ULL << 62)
#define REINET_PEER_NAMED_BY (3ULL << 62)

static inline int reinet_is_peer_of_program(reinet_u64 peer) {
  return (peer & REINET_PEER_NAMED_BY) == REINET_PEER_OF_PROGRAM;
}

/* Returns the name of 4 bytes of IPv4, as they are in memory; never 0. */
static inline reinet_u64 reinet_peer_of_v4(reinet_u32 address) { return 1ULL << 32 | address; }

/* Returns the name of 16 bytes of IPv6, given as four words in memory; never 0. An IPv4 address in IPv6's clothes is
 * that of IPv4.
 */
static inline reinet_u64 reinet_peer_of_v6(const reinet_u32 words[4]) {
  const unsigned char* mark = (const unsigned char*)&words[2]; /* ::ffff:0:0/96 */
  const int is_v4 = !words[0] && !words[1] && !mark[0] && !mark[1] && mark[2] == 0xFF && mark[3] == 0xFF;

  return is_v4 ? reinet_peer_of_v4(words[3]) : (1ULL << 63 | (reinet_u64)words[0] << 32 | words[1]);
}

#endif
