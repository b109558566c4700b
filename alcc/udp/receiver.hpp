// SPDX-License-Identifier: Apache-2.0
//
// The other end of UdpSender: acknowledges every packet at once, and writes the bytes in order. It says nothing but
// these ACKs, each to a datagram with the token that its sender was given, and each smaller than that.
#ifndef REINET_ALCC_UDP_RECEIVER_HPP
#define REINET_ALCC_UDP_RECEIVER_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "alcc/udp/wire.hpp"
#include "core/cc/clock.hpp"

namespace reinet::alcc {

class UdpReceiver {
 public:
  struct Counts {
    std::uint64_t received_bytes = 0;  // in order, which were written
    std::uint64_t received_pkts = 0, duplicate_pkts = 0, ignored_datagrams = 0;
    Us receiving_us = 0;     // from the first packet to the last
    bool cut_short = false;  // the sender had more, and no time for it
  };

  // fd: connected to the sender; out_fd: takes the bytes, -1 = nobody does. Both stay the caller's.
  UdpReceiver(int fd, std::uint64_t token, int out_fd);

  // Takes a datagram that was read before.
  void take(const std::uint8_t* datagram, std::size_t size_bytes);
  // Goes on for so long at most. Returns whether it is over; then failure() says why it failed, or is empty.
  bool step(Us most_us);
  const std::string& failure() const { return failure_; }
  const Counts& counts() const { return counts_; }

 private:
  bool done() const { return end_known_ && counts_.received_bytes == end_bytes_; }
  void keep(std::uint64_t offset, const std::uint8_t* bytes, std::size_t size_bytes);
  void write_out(const std::uint8_t* bytes, std::size_t size_bytes);

  int fd_, out_fd_;
  std::uint64_t token_;
  std::string failure_;
  std::map<std::uint64_t, std::vector<std::uint8_t>> ahead_;  // by offset, what came before its turn
  std::uint64_t end_bytes_ = 0;
  bool end_known_ = false;
  Us first_us_ = 0, heard_us_;
  Counts counts_;
};

}  // namespace reinet::alcc

#endif
