// SPDX-License-Identifier: Apache-2.0
//
// What goes over UDP, in little-endian. The handshake is Python's (alcc/datagrams.py), which hands over the token: the
// receiver's answer to an address that asked, without which it takes no data and sends no ACK.
//
//   data  'D' 0  length u16 | token u64 | number u64 | mark u64 | offset u64 | the bytes
//   end   'E' 0  0          | token u64 | number u64 | mark u64 | bytes in all u64
//   ack   'A' done 0        | token u64 | number u64 | mark u64     done: all up to the end has come
//
// An ACK is smaller than what it answers, and echoes a mark that only who got the packet can know: nobody else can
// acknowledge it, the receiver not before it came. When it was sent the sender remembers, and need not be told.
#ifndef REINET_ALCC_UDP_WIRE_HPP
#define REINET_ALCC_UDP_WIRE_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace reinet::alcc {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "datagrams are copied as they lie in memory");

struct DataHeader {
  char kind = 'D';
  std::uint8_t cut_short = 0;  // of the end: there was more, for which there was no time
  std::uint16_t length_bytes = 0;
  std::uint32_t pad = 0;
  std::uint64_t token = 0, number = 0, mark = 0, offset = 0;
};
static_assert(sizeof(DataHeader) == 40);

struct AckHeader {
  char kind = 'A';
  std::uint8_t done = 0;
  std::uint16_t unused = 0;
  std::uint32_t pad = 0;
  std::uint64_t token = 0, number = 0, mark = 0;
};
static_assert(sizeof(AckHeader) == 32 && sizeof(AckHeader) < sizeof(DataHeader));

constexpr std::uint32_t kIpUdpBytes = 20 + 8;  // of IPv4
constexpr std::uint32_t kMostIpBytes = 1500;   // Ethernet's; a law's own packets may be smaller
// How far beyond what it has in order a receiver takes data, and a sender goes.
constexpr std::uint64_t kMostAheadBytes = 32 << 20;

}  // namespace reinet::alcc

#endif
