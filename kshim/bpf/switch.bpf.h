/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Congestion controls by name: telling them apart, and switching a socket to one.
 */
#ifndef REINET_SWITCH_BPF_H
#define REINET_SWITCH_BPF_H

#include "kshim/bpf/maps.bpf.h"

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

#endif
