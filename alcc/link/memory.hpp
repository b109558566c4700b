// SPDX-License-Identifier: Apache-2.0
//
// The memory that a process under the gate shares with the daemon, which decides for it: one sealed memfd a process.
// Records and caps are those of the kernel shim (core/flow_stats.h, kshim/cap.h), and so is the rule: each kind of
// memory has one writer. The process may write all of it; what the daemon reads there it copies and checks, and what it
// wrote itself it does not read again.
//
//   page 0     header
//   caps       one for each slot; written by the daemon
//   busy       data of the slot's flow awaits an ACK; written by the process
//   records    a ring; written by the process, read by the daemon
#ifndef REINET_ALCC_LINK_MEMORY_HPP
#define REINET_ALCC_LINK_MEMORY_HPP

#include <cstddef>
#include <cstdint>

#include "core/flow_stats.h"
#include "kshim/cap.h"

namespace reinet::alcc {

constexpr std::uint64_t kLinkMagic = 0x314B4E494C4E4952;  // "RINLINK1"
constexpr std::uint32_t kLinkSlots = 4096;                // further flows of a process stay uncapped
constexpr std::uint32_t kLinkRecords = 1024;              // ten periods of 100 flows; a power of two

struct LinkHeader {
  std::uint64_t magic;
  alignas(REINET_CACHE_LINE_BYTES) std::uint64_t written;        // records so far, by the process
  alignas(REINET_CACHE_LINE_BYTES) std::uint64_t taken;          // by the daemon
  alignas(REINET_CACHE_LINE_BYTES) std::uint64_t min_period_ns;  // the model's, by the daemon; 0 = not said yet
  std::uint64_t packet_timed;
};

struct LinkMemory {
  union {
    LinkHeader header;
    char page[4096];
  };
  reinet_cap caps[kLinkSlots];
  std::uint32_t busy[kLinkSlots];
  reinet_flow_stats records[kLinkRecords];
};
static_assert(sizeof(LinkMemory) % 4096 == 0, "whole pages");

}  // namespace reinet::alcc

#endif
