// SPDX-License-Identifier: Apache-2.0
// What a segment and a delivery opportunity weigh on an emulated link.
#ifndef REINET_WIRE_HPP
#define REINET_WIRE_HPP

#include <cstdint>

namespace reinet {

// A TUN device puts this before each packet that it hands to Mahimahi, and Mahimahi counts it.
constexpr std::uint32_t kTunHeaderBytes = 4;
// What a segment's payload is wrapped in: IPv4 header, TCP header with timestamps, TUN header.
constexpr std::uint32_t kHeaderBytes = 20 + 32 + kTunHeaderBytes;
// An ACK without data: the same headers, and one block of SACK where it tells of a hole.
constexpr std::uint32_t kSackBytes = 12;
// An opportunity carries one MTU of 1500 bytes and its TUN header.
constexpr std::uint32_t kOpportunityBytes = 1500 + kTunHeaderBytes;

}  // namespace reinet

#endif
