// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_CONGESTION_CONTROL_HPP
#define REINET_CONGESTION_CONTROL_HPP

#include <concepts>
#include <cstdint>

#include "link.hpp"

namespace reinet {

// The part of a connection that congestion control may read and write.
struct Window {
  std::uint32_t cwnd_pkts;
  std::uint32_t ssthresh_pkts;

  bool slow_start() const { return cwnd_pkts < ssthresh_pkts; }
};

// What a sender asks of its congestion control. A concept and not a base class, so that the calls are inlined.
template <class C>
concept CongestionControl =
    std::default_initializable<C> &&
    requires(C c, Window& w, const Window& read, Us now_us, std::uint32_t rtt_us, std::uint32_t segment,
             std::uint32_t pkts) {
      // An RTT sample, before the window is updated; the first and the next segment outstanding.
      c.on_rtt(w, now_us, rtt_us, segment, segment);
      // Newly delivered packets outside recovery, while the window limits the flow.
      c.on_delivered(w, now_us, pkts);
      // A loss, told by ACKs or by a timeout: returns the new ssthresh.
      { c.on_loss(read) } -> std::same_as<std::uint32_t>;
      // The window now belongs to recovery, until it ends at ssthresh.
      c.on_recovery();
      // A timeout: what was known of the path is void.
      c.on_timeout();
    };

}  // namespace reinet

#endif
