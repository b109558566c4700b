// SPDX-License-Identifier: Apache-2.0
//
// The packets that are out, by number. A number is used once: what is sent again has a new one, so that an ACK says
// which transmission it is of (as in QUIC, RFC 9000 section 12.3).
#ifndef REINET_ALCC_FLIGHT_HPP
#define REINET_ALCC_FLIGHT_HPP

#include <cstdint>
#include <deque>

#include "core/cc/clock.hpp"

namespace reinet::alcc {

// A packet is lost when so many later ones were acknowledged: RFC 9002's kPacketThreshold. The laws' own senders, and
// the simulator's, take 1, for links that keep the order; the Internet does not always.
constexpr std::uint64_t kReorderingPkts = 3;

enum class Fate : std::uint8_t { out, lost, acked };

struct Packet {
  Us sent_us = 0;
  std::uint64_t mark = 0;   // what its ACK has to echo: nobody can guess it
  std::uint64_t chunk = 0;  // which part of the data it carries
  Fate fate = Fate::out;
};

class Flight {
 public:
  explicit Flight(std::uint64_t reordering_pkts = kReorderingPkts) : reordering_pkts_(reordering_pkts) {}

  std::uint64_t next() const { return head_ + packets_.size(); }
  void send(const Packet& packet) { packets_.push_back(packet); }

  // Returns the packet of that number, null where it was never sent or is settled.
  Packet* find(std::uint64_t number) {
    if (number < head_ || number >= next()) return nullptr;
    Packet& packet = packets_[number - head_];
    return packet.fate == Fate::acked ? nullptr : &packet;
  }

  // Notes that the number was acknowledged, and calls lost(packet) for those that are given up on that.
  template <class Lost>
  void acknowledge(std::uint64_t number, Lost&& lost) {
    packets_[number - head_].fate = Fate::acked;
    if (number > newest_) newest_ = number;
    for (; judged_ + reordering_pkts_ <= newest_; ++judged_) give_up(judged_, lost);
    while (!packets_.empty() && (packets_.front().fate == Fate::acked ||
                                 (packets_.front().fate == Fate::lost && head_ + kRememberedPkts < newest_))) {
      packets_.pop_front();
      ++head_;
    }
    if (judged_ < head_) judged_ = head_;
  }

  // A timeout: gives up the oldest packet, and all that were sent by then.
  template <class Lost>
  void time_out(Us sent_until_us, Lost&& lost) {
    bool first = true;
    for (std::uint64_t number = judged_; number < next(); ++number) {
      Packet& packet = packets_[number - head_];
      if (packet.fate != Fate::out || (!first && packet.sent_us > sent_until_us)) continue;
      first = false;
      give_up(number, lost);
    }
  }

 private:
  // So long a lost packet's late ACK is understood: more than any reordering.
  static constexpr std::uint64_t kRememberedPkts = 4096;

  template <class Lost>
  void give_up(std::uint64_t number, Lost&& lost) {
    if (number < head_) return;
    Packet& packet = packets_[number - head_];
    if (packet.fate != Fate::out) return;
    packet.fate = Fate::lost;
    lost(packet);
  }

  std::uint64_t reordering_pkts_;
  std::deque<Packet> packets_;
  std::uint64_t head_ = 0;    // the first packet's number
  std::uint64_t judged_ = 0;  // all below are acknowledged or lost
  std::uint64_t newest_ = 0;  // the highest acknowledged
};

}  // namespace reinet::alcc

#endif
