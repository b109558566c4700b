// SPDX-License-Identifier: Apache-2.0
//
// Sends bytes over a connected UDP socket as one law would have them sent: the native transport of Copa, Verus and
// Sprout, with an ACK of every packet. All bytes arrive: what is lost goes again, in a new packet.
//
//   sending (up to the deadline, or the data's end) --> draining (what is out, again if lost) --> ending --> done
//       |                                                                                    ('E' until its ACK)
//       +--> failed: nothing was heard for ten seconds, nobody is there, or the drain took too long
#ifndef REINET_ALCC_UDP_SENDER_HPP
#define REINET_ALCC_UDP_SENDER_HPP

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "alcc/driver/driver.hpp"
#include "alcc/udp/flight.hpp"
#include "alcc/udp/wire.hpp"
#include "core/cc/pacer.hpp"

namespace reinet::alcc {

// The bytes to send: those there are, or, endless, these again and again.
struct Source {
  const std::uint8_t* data;
  std::uint64_t size_bytes;
  bool endless;
};

// RTTs in bins of 0.1 ms, so that long runs take no more memory than short ones.
class RttHistogram {
 public:
  void add(Us rtt_us) {
    sum_us_ += rtt_us;
    ++count_;
    ++bins_[std::min<Us>(rtt_us / kBinUs, kBins - 1)];
  }
  double mean_us() const { return count_ ? static_cast<double>(sum_us_) / static_cast<double>(count_) : 0.0; }
  // Returns the middle of the bin that holds that share of the samples, as sorted[int(share n)] would.
  double quantile_us(double share) const;
  std::uint64_t count() const { return count_; }

 private:
  static constexpr Us kBinUs = 100;
  static constexpr std::size_t kBins = 100'000;  // up to 10 s, after which the sender gives up

  std::vector<std::uint32_t> bins_ = std::vector<std::uint32_t>(kBins, 0);
  Us sum_us_ = 0;
  std::uint64_t count_ = 0;
};

class UdpSender {
 public:
  struct Counts {
    std::uint64_t acked_bytes = 0;  // of the data, each byte once
    std::uint64_t sent_pkts = 0, lost_pkts = 0, late_acks = 0, timeouts = 0;
    std::uint64_t ignored_datagrams = 0;  // that are no ACK of anything sent here
    std::uint64_t acked_in_time_bytes = 0;
    Us sending_us = 0;  // up to the deadline, or to the last byte's ACK before it
  };

  // fd: connected, stays the caller's. rtt_us: the handshake's. Raises std::invalid_argument for an unknown law.
  UdpSender(int fd, std::uint64_t token, std::string_view law, const Source& source, Us seconds_us,
            std::uint32_t rtt_us, std::uint64_t seed);

  // Goes on for so long at most. Returns whether it is over; then failure() says why it failed, or is empty.
  bool step(Us most_us);
  const std::string& failure() const { return failure_; }
  const Counts& counts() const { return counts_; }
  const RttHistogram& rtts() const { return rtts_; }
  std::uint32_t payload_bytes() const { return payload_bytes_; }
  std::uint64_t sent_bytes() const { return end_bytes(); }
  // Of the data, what the deadline left out.
  std::uint64_t unsent_bytes() const { return source_.endless ? 0 : source_.size_bytes - end_bytes(); }

 private:
  enum class Stage { sending, draining, ending, done, failed };

  void take_acks(Us now_us);
  void take_ack(const AckHeader& ack, Us now_us);
  void on_timers(Us now_us);
  void lose(const Packet& packet);
  void advance_stage(Us now_us);
  bool transmit(Us now_us);
  bool next_chunk(std::uint64_t& chunk, Us now_us);
  bool put(std::uint64_t chunk, Us now_us);
  void put_end(Us now_us);
  void take_error(int error);
  void fail(const std::string& why);
  Us wake_us() const;
  std::uint64_t chunk_bytes(std::uint64_t chunk) const;
  std::uint64_t end_bytes() const;
  std::uint64_t new_mark();
  std::uint64_t new_chunk() const { return first_chunk_ + acked_.size(); }  // the first that was never sent
  bool all_sent() const { return !source_.endless && new_chunk() * payload_bytes_ >= source_.size_bytes; }
  bool all_acked() const { return acked_.empty() && unsent_again_.empty(); }

  int fd_;
  std::uint64_t token_;
  std::unique_ptr<LawDriver> law_;
  Source source_;
  std::uint32_t payload_bytes_;
  Stage stage_ = Stage::sending;
  std::string failure_;
  Us start_us_, deadline_us_, drain_until_us_ = kNever;
  Us heard_us_;
  Us end_due_us_ = 0;
  Us pace_us_ = kNever;  // when the law's pace lets the next packet go
  std::uint32_t refusals_ = 0;
  int unreachable_ = 0;  // why the path took no packet since something was heard, 0 = it took them
  Flight flight_;
  Pacer pacer_;
  std::uint64_t first_chunk_ = 0;           // not yet acknowledged
  std::deque<bool> acked_;                  // from that on, of what was sent
  std::deque<std::uint64_t> unsent_again_;  // lost
  std::uint64_t end_number_ = 0, end_mark_ = 0;
  bool blocked_ = false;  // the socket takes nothing
  std::vector<std::uint64_t> marks_;
  Counts counts_;
  RttHistogram rtts_;
};

}  // namespace reinet::alcc

#endif
