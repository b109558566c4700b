// SPDX-License-Identifier: Apache-2.0
//
// A law of core/cc/published/ over TCP: what its own transport would tell it of each packet is told from two looks at
// TCP_INFO.
//
//   sent        segments that went out since the last look, those sent again too
//   delivered   segments acknowledged or SACKed, each as an ACK of its own, the oldest first
//   lost        what left the flight and was not delivered
//   RTT         of all ACKs between two looks the mean (mean_of_samples_us of alcc/stats/measure.hpp), less what the
//               receiver waited before it acknowledged
//
// The window is the law's, and nothing else is: the kernel repeats what is lost, and nothing is paced, which was tried
// (docs/alcc.md).
#ifndef REINET_ALCC_PUBLISHED_HPP
#define REINET_ALCC_PUBLISHED_HPP

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "alcc/driver/driver.hpp"
#include "alcc/stats/kernel_view.hpp"

namespace reinet::alcc {

class PublishedLaw {
 public:
  // name: one of law_names().
  PublishedLaw(std::string_view name, std::uint64_t seed) : name_(name), seed_(seed) {}

  // Takes a look at the connection; returns the cap in packets from now on.
  std::uint32_t look(const KernelView& view, std::uint64_t now_ns);
  bool grants_packets() const { return law_ && law_->grants_packets(); }
  // When the law's own clock wants the next look, kNever if it has none.
  std::uint64_t due_ns() const;

 private:
  struct Out {
    Us sent_us;
    bool given_up;  // by the law, while the kernel still waits for it
  };

  void begin(const KernelView& view, Us now_us);
  void note_sent(std::uint32_t pkts, Us now_us);
  void note_lost(std::size_t pkts);
  void note_delivered(std::uint32_t pkts, Us now_us, std::int32_t rtt_us);
  void time_out(Us now_us);

  std::string name_;
  std::uint64_t seed_;
  std::unique_ptr<LawDriver> law_;
  std::deque<Out> out_;  // in flight, the oldest first
  std::uint32_t given_up_pkts_ = 0;
  std::uint32_t segments_in_ = 0, segments_out_ = 0, delivered_pkts_ = 0, srtt_us_ = 0;
  Us looked_us_ = 0, heard_us_ = 0;
};

}  // namespace reinet::alcc

#endif
