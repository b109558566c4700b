// SPDX-License-Identifier: Apache-2.0
//
// The queue of others: which flows are left alone for a while, because no cap shortens what they wait in.
//
// A flow that is alone in its queue waits for what it has in flight itself: capped lower, it soon waits less. Beside a
// plain flow it does not. Cubic fills whatever the capped flow leaves, so caps fall to their least, the delay stays,
// and the capped flow has given its share away for nothing. Copa knows such others by a queue that never drains, and
// then competes; here the flow's own congestion control does that, uncapped.
//
// The evidence is a stretch of kForeignRounds round trips, all under a cap, in which no RTT sample came down to half of
// what the target leaves for queueing, and in which the flow delivered less than kForeignRateShare of what it did
// before. Either alone is a slow link's: there a flow waits long for the few packets that a cap always leaves, at the
// rate that it had; and where the link itself slows down, the queue drains within a few round trips under the next
// caps.
//
// Capped flows that share a queue disturb each other in the same way for a moment, as when another one begins, and must
// come back to a short queue together: so all are left alone until the same times, the multiples of kYieldNs of the
// records' clock, as the looks of min_rtt_look.hpp begin together.
#ifndef REINET_OTHERS_HPP
#define REINET_OTHERS_HPP

#include <algorithm>
#include <cstdint>

#include "core/flow_stats.h"

namespace reinet {

// Simulated flows that were alone waited for 22 at most in this way, those beside Cubic or BBR mostly for over 50.
constexpr double kForeignRounds = 32;
// And so long at least: a flow that begins is uncapped for its first second, and what it has filled by then drains.
constexpr double kForeignNs = 2.5e9;
constexpr double kForeignRoomShare = 0.5;
// Below one half, which is what a second flow of the same kind leaves to the first. Beside BBR a capped flow kept 0.37
// of what it had uncapped, beside Cubic 0.2.
constexpr double kForeignRateShare = 0.45;
// Long beside the stretch, so that a flow beside others is plain for most of the time; and not so long that those who
// could share a short queue wait for it in vain. The next multiple is passed over where it is nearer than a quarter.
constexpr std::uint64_t kYieldNs = 20'000'000'000;
// Rates are means over so much: the bursts of a cellular link are none.
constexpr double kRateWindowNs = 1e9;

// What is known of one flow.
class OthersQueue {
 public:
  // Takes a record with an RTT sample; returns whether the flow is to be left alone.
  bool update(const reinet_flow_stats& s) {
    window_.add(s);
    if (window_.took_ns >= kRateWindowNs) {
      peak_rate_ = std::max(peak_rate_, window_.rate());
      window_ = {};
    }
    if (waits(s)) {
      stretch_.add(s);
      rounds_ += s.period_ns / (1000.0 * std::max(s.srtt_us, 1U));
    } else {
      stretch_ = {};
      rounds_ = 0;
    }
    if (rounds_ >= kForeignRounds && stretch_.took_ns >= kForeignNs &&
        stretch_.rate() < kForeignRateShare * peak_rate_) {
      until_ns_ = ((s.time_ns + kYieldNs / 4) / kYieldNs + 1) * kYieldNs;
      stretch_ = {};
      rounds_ = peak_rate_ = 0;  // by then the link may be another one
    }
    return s.time_ns < until_ns_;
  }

 private:
  struct Delivered {
    double took_ns = 0, bytes = 0;
    void add(const reinet_flow_stats& s) {
      took_ns += static_cast<double>(s.period_ns);
      bytes += static_cast<double>(s.delivered_bytes);
    }
    double rate() const { return bytes / took_ns; }
  };

  static bool waits(const reinet_flow_stats& s) {
    const double room_us = static_cast<double>(s.target_us) - s.min_rtt_us;
    return s.cap_pkts != 0 && !(s.flags & (REINET_FLAG_APP_LIMITED | REINET_FLAG_RESTARTED)) &&
           s.rtt_least_us > s.min_rtt_us + kForeignRoomShare * room_us;
  }

  Delivered window_, stretch_;
  double rounds_ = 0, peak_rate_ = 0;
  std::uint64_t until_ns_ = 0;
};

}  // namespace reinet

#endif
