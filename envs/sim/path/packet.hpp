// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_PACKET_HPP
#define REINET_PACKET_HPP

#include <cstdint>

#include "core/cc/clock.hpp"

namespace reinet {

// A data packet on its way from a sender to its receiver.
struct Packet {
  std::uint32_t seq;         // in segments
  std::uint16_t wire_bytes;  // IP packet + TUN header
  std::uint16_t flow;        // number of the flow in its simulation
  Us sent_us;                // the TCP timestamp it carries
  Us arrives_us;             // where it goes next: the delay, then the queue
};

}  // namespace reinet

#endif
