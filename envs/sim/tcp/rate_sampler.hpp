// SPDX-License-Identifier: Apache-2.0
//
// Delivery rate samples (draft-ietf-ccwg-bbr section 4.1, as the kernel's tcp_rate.c takes them): every transmission
// remembers how much was delivered when it left; once it is delivered, what has been delivered since, over the longer
// of the times that sending it and acknowledging it took, is a sample of the rate.
#ifndef REINET_RATE_SAMPLER_HPP
#define REINET_RATE_SAMPLER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cc/rate_sample.hpp"
#include "envs/sim/path/ring.hpp"

namespace reinet {

class RateSampler {
 public:
  // Notes that seq was sent, again or, at the ring's end, for the first time.
  void on_sent(std::uint32_t seq, Us now_us, bool none_in_flight, std::uint64_t delivered_pkts, bool app_limited) {
    if (none_in_flight) first_sent_us_ = delivered_us_ = now_us;
    const Transmission t{static_cast<std::uint32_t>(delivered_pkts), app_limited, before(delivered_us_, now_us),
                         before(first_sent_us_, now_us)};
    if (seq == transmissions_.tail())
      transmissions_.push(t);
    else
      transmissions_[seq] = t;
  }

  // Notes that seq, last sent at sent_us, was delivered for the first time; the newest transmission makes the sample.
  void on_delivered(std::uint32_t seq, Us sent_us, Us now_us) {
    delivered_us_ = now_us;
    if (found_ && (sent_us < newest_sent_us_ || (sent_us == newest_sent_us_ && seq < newest_seq_))) return;
    found_ = true;
    newest_ = transmissions_[seq];
    newest_seq_ = seq;
    first_sent_us_ = newest_sent_us_ = sent_us;
  }

  // Returns the ACK's sample, after its deliveries; all below una is acknowledged.
  RateSample take(std::uint32_t una, std::uint64_t delivered_pkts, Us now_us, std::uint32_t min_rtt_us) {
    while (transmissions_.head() != una) transmissions_.pop();
    RateSample r;
    r.delivered_us = delivered_us_;
    if (!found_) return r;
    found_ = false;
    r.prior_delivered_pkts = newest_.delivered_pkts;
    r.app_limited = newest_.app_limited;
    const Us acknowledging_us = now_us - newest_sent_us_ + newest_.delivered_before_us;
    const Us interval_us = std::max<Us>(newest_.first_sent_before_us, acknowledging_us);
    // Sooner than a round trip, a retransmission was taken for the original, or the reverse.
    if (interval_us < min_rtt_us) return r;
    r.delivered_pkts = static_cast<std::uint32_t>(delivered_pkts - newest_.delivered_pkts);
    r.interval_us = interval_us;
    return r;
  }

  std::size_t heap_bytes() const { return transmissions_.heap_bytes(); }

 private:
  // Small, for there is one per packet in flight: times are told by how long before the transmission they were.
  struct Transmission {
    std::uint32_t delivered_pkts = 0;  // when it was sent
    std::uint32_t app_limited : 1 = 0;
    std::uint32_t delivered_before_us : 31 = 0;  // the last delivery
    std::uint32_t first_sent_before_us = 0;      // start of the sample's sending interval
  };

  static constexpr Us kLongestUs = (Us{1} << 31) - 1;  // half an hour: more counts as that
  static std::uint32_t before(Us earlier_us, Us us) {
    return static_cast<std::uint32_t>(std::min<Us>(us - earlier_us, kLongestUs));
  }

  Ring<Transmission> transmissions_;
  Transmission newest_;
  Us newest_sent_us_ = 0;
  std::uint32_t newest_seq_ = 0;
  bool found_ = false;
  Us first_sent_us_ = 0;
  Us delivered_us_ = 0;
};

// In its place where a control takes no samples.
struct NoRateSampler {
  static std::size_t heap_bytes() { return 0; }
};

}  // namespace reinet

#endif
