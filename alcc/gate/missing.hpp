// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_MISSING_HPP
#define REINET_ALCC_MISSING_HPP

#include <algorithm>
#include <cstdint>

namespace reinet::alcc {

// What a full window lacks on average. The kernel tops a window up at each ACK; the gate does at its looks, and who was
// refused writes a while after that. So much more is let through, and the mean in flight is the cap.
class Missing {
 public:
  // Somebody was refused, so the window is full. What an application that has nothing to send leaves of a window is not
  // missing.
  void begin(std::uint64_t now_ns) {
    if (start_ns_ == 0) start_ns_ = known_ns_ = now_ns;
  }
  void end() { *this = Missing{}; }

  // So many bytes may be handed over by now. Between two looks they came evenly.
  void look(std::uint64_t now_ns, std::uint64_t room_bytes) {
    if (start_ns_ == 0) return;
    const auto bytes = static_cast<double>(room_bytes);
    area_ += (known_bytes_ + bytes) / 2 * static_cast<double>(now_ns - known_ns_);
    known_ns_ = now_ns;
    known_bytes_ = bytes;
  }

  void send(std::uint64_t bytes) { known_bytes_ = std::max(known_bytes_ - static_cast<double>(bytes), 0.0); }

  // Makes up pkts() anew, of what was missing since the last call. heard: something was delivered since then. What is
  // out beyond the cap can be taken back only where something was.
  void make_up(std::uint64_t now_ns, std::uint32_t srtt_us, std::uint32_t mss_bytes, bool heard) {
    if (start_ns_ == 0 || now_ns <= start_ns_ || srtt_us == 0) return;
    const auto elapsed_ns = static_cast<double>(now_ns - start_ns_);
    // Over about a round trip: the latest look alone finds a burst on a cellular link, and what that let through would
    // wait for the next one.
    mean_bytes_ += (area_ / elapsed_ns - mean_bytes_) * std::min(elapsed_ns / (srtt_us * 1000.0), 1.0);
    area_ = 0;
    start_ns_ = now_ns;
    // Of a third of a packet a whole one is out at every third look.
    owed_bytes_ += mean_bytes_;
    if (heard || pkts_ == 0) pkts_ = static_cast<std::uint32_t>(std::max(owed_bytes_ / mss_bytes, 0.0));
    // An outage takes nothing back, and what it owes is forgotten after so many looks.
    owed_bytes_ = std::max(owed_bytes_ - static_cast<double>(pkts_) * mss_bytes, -kForgottenLooks * mss_bytes);
  }

  std::uint32_t pkts() const { return pkts_; }

 private:
  static constexpr double kForgottenLooks = 8;

  std::uint64_t start_ns_ = 0, known_ns_ = 0;
  double known_bytes_ = 0, area_ = 0;  // byte nanoseconds since start
  double mean_bytes_ = 0;
  double owed_bytes_ = 0;  // at looks; negative while a whole packet is out
  std::uint32_t pkts_ = 0;
};

}  // namespace reinet::alcc

#endif
