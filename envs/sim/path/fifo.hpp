// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_FIFO_HPP
#define REINET_FIFO_HPP

#include <cstddef>
#include <cstdint>

#include "envs/sim/path/packet.hpp"
#include "envs/sim/path/ring.hpp"

namespace reinet {

// Packets in order, with limits; 0 = no such limit. Its bytes include each packet's TUN header, as Mahimahi's do.
class Fifo {
 public:
  Fifo(std::uint32_t limit_bytes, std::uint32_t limit_pkts)
      : limit_bytes_(limit_bytes ? limit_bytes : ~std::uint64_t{0}), limit_pkts_(limit_pkts ? limit_pkts : ~0U) {}

  bool has_room_for(const Packet& p) const { return within(bytes_ + p.wire_bytes, pkts() + 1); }
  bool overfull() const { return !within(bytes_, pkts()); }
  void push(const Packet& p) {
    bytes_ += p.wire_bytes;
    packets_.push(p);
  }
  const Packet& pop() {  // good until the next push
    bytes_ -= packets_.front().wire_bytes;
    return packets_.pop();
  }

  bool empty() const { return packets_.empty(); }
  std::uint32_t pkts() const { return packets_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t heap_bytes() const { return packets_.heap_bytes(); }

 private:
  bool within(std::uint64_t bytes, std::uint32_t pkts) const { return bytes <= limit_bytes_ && pkts <= limit_pkts_; }

  Ring<Packet> packets_;
  std::uint64_t bytes_ = 0;
  std::uint64_t limit_bytes_;
  std::uint32_t limit_pkts_;
};

}  // namespace reinet

#endif
