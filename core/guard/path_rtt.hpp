// SPDX-License-Identifier: Apache-2.0
//
// What a flow's minimum RTT is by now.
//
// The kernel's is the least of five minutes. When the path becomes longer meanwhile, by a handover or another route, a
// flow seems to have a queue that its caps do not shorten. Each takes a part of the rate, and the next one is measured
// by that rate: caps run down, and nothing ends it (docs/no-harm.md has by how much).
//
// A longer path and a queue look alike until the window changes: then either the rate follows it or the RTT. So a
// capped flow is asked whose RTT was for a while steadily above its minimum, and which gets less than it did: it is
// uncapped until it has kAskTimes as much in flight. Where at least half of that comes back as rate, the RTT from
// before is the path's, until a shorter one is seen. Over a link whose rate varies the RTT does, too, and hardly
// anybody is asked; there a look for the minimum RTT shows the path (looked_at_path.hpp).
//
// A flow that shares a queue with another capped one gets less as well when that one begins, and more when it alone is
// uncapped. Asked, each would take the queue of all for the path. So where there are others, a flow is asked only when
// its RTT stood through all of the time between two instants at which all look for the path's (min_rtt_look.hpp).
//
//     steadily above the minimum, and less than before       more in flight brought more
//     capped ------------------------------------> asked ------------------------------> path known, capped
//       ^                                            |  |                                     or, where that leaves the
//       +--------------------------------------------+  +------------------------------>      target no room, uncapped
//             it brought nothing, or the link changed                                         for a while
#ifndef REINET_PATH_RTT_HPP
#define REINET_PATH_RTT_HPP

#include <algorithm>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/guard/looked_at_path.hpp"
#include "core/guard/min_rtt_look.hpp"
#include "core/states/delay_ratio.hpp"
#include "core/states/feature.hpp"

namespace reinet {

class PathRtt {
 public:
  // Takes a record with an RTT sample; returns the least RTT of the path as it is now.
  std::uint32_t update(const reinet_flow_stats& s) {
    remember(s);
    if (s.time_ns >= (is_too_long(s) ? next_ns_ : forget_ns_)) longer_us_ = 0;
    const std::uint32_t path_us = std::max(s.min_rtt_us, longer_us_);
    if (stands_ns_ == 0 || s.rtt_least_us <= kNearPath * path_us || drained(s)) stands_ns_ = s.time_ns;
    const std::uint32_t looked_at_us = look_.update(s, path_us);
    if (s.flags & (REINET_FLAG_APP_LIMITED | REINET_FLAG_RESTARTED)) {
      standing_ = {};
      asked_ns_ = 0;
    } else if (looked_at_us != 0) {
      learn(s, looked_at_us, true);
    } else if (asked_ns_ != 0) {
      ask(s);
    } else if (s.cap_pkts == 0 || flew_pkts(s) < kBinds * s.cap_pkts || s.rtt_least_us <= kNearPath * path_us) {
      standing_ = {};
    } else {
      standing_.add(s);
      const bool alone = !(s.flags & REINET_FLAG_COMPANY);
      if (seems_starved(s) && may_ask_again(s) && (alone || was_looked_at(s))) begin(s);
    }
    return std::max(s.min_rtt_us, longer_us_);
  }

  // Returns the path's least RTT where that has become longer than the kernel's, else 0.
  std::uint32_t longer_us() const { return longer_us_; }

  // Returns whether the flow is to have no cap: it is asked, or its target cannot be kept on the path as it is now.
  bool opens(const reinet_flow_stats& s) const { return asked_ns_ != 0 || is_too_long(s); }

 private:
  static constexpr double kNearPath = 1.1;
  static constexpr double kBinds = 0.5;  // a cap above what is in flight holds nobody back
  // By then the rate of a flow that its caps hold back has fallen.
  static constexpr double kStandingNs = 1e9;
  static constexpr double kStandingRounds = 16;
  static constexpr double kLessThanBest = 0.8;  // under the least cap, that best one may be forgotten by now
  // The mean RTT over the least one. Up to 1.2 nothing that recordings show of a policy moves but in the third digit;
  // at 1.3 a longer path is noticed on more of them, and some under BBR are taken for one.
  static constexpr double kSteady = 1.2;
  // Who is taken for one beyond the target is uncapped for seconds.
  static constexpr double kSteadyFar = 1.1;
  static constexpr double kWindowNs = 0.5e9;
  static constexpr std::uint64_t kBestNs = 2 * kLookEveryNs;  // the best rate is of the latest one or two such times
  static constexpr double kAskTimes = 1.3;
  static constexpr double kComesBack = 1 + (kAskTimes - 1) / 2;
  static constexpr double kGone = 0.5;
  static constexpr double kLowerThanBefore = 0.95;  // an RTT below so much of the least before: the link has changed
  static constexpr std::uint64_t kMostAskNs = 3'000'000'000;  // Reno's window grows by a packet a round trip
  // One sample is no path, and a look lasts two round trips.
  static constexpr double kPartRounds = 0.5;
  // A queue of the flow's own that stands on a path which is shorter again hides that from whoever is not looked at:
  // the flow is asked anew after so long. That takes a second or two in which it gets less.
  static constexpr std::uint64_t kForgetNs = 60'000'000'000;
  // What a look has shown is kept longer where a queue half as long as the path came and went: it would have shown a
  // shorter one.
  static constexpr double kQueueComes = 1.5;
  // Where the path leaves the target no room the flow is uncapped for seconds: one answer may be a link's that changed.
  static constexpr int kFarAsks = 3;
  // One that is several times as long as the minimum is no short queue, so there the first rest is the longest.
  static constexpr std::uint64_t kLeastRestNs = 5'000'000'000, kMostRestNs = 40'000'000'000;

  // Records in a row.
  struct Stretch {
    double took_ns = 0, bytes = 0, rounds = 0, inflight_ns = 0, rtt_ns_us = 0;
    std::uint32_t least_us = ~0U;
    void add(const reinet_flow_stats& s) {
      const auto period_ns = std::max(static_cast<double>(s.period_ns), 1.0);
      took_ns += period_ns;
      bytes += static_cast<double>(s.delivered_bytes);
      rounds += rounds_of(s);
      inflight_ns += period_ns * flew_pkts(s);
      rtt_ns_us += period_ns * s.rtt_mean_us;
      least_us = std::min(least_us, s.rtt_least_us);
    }
    double bytes_per_ns() const { return bytes / took_ns; }
    double inflight_pkts() const { return inflight_ns / took_ns; }
    double rtt_us() const { return rtt_ns_us / took_ns; }
    bool is_steady(double times) const { return rtt_us() <= times * least_us; }
  };

  // Returns whether a path of this RTT leaves the target no room.
  static bool is_far(std::uint32_t path_us, const reinet_flow_stats& s) {
    return kLeastTargetPerRtt * path_us > s.target_us;
  }
  bool is_too_long(const reinet_flow_stats& s) const { return is_far(longer_us_, s); }

  void remember(const reinet_flow_stats& s) {
    part_.add(s);
    if (part_.rounds >= kPartRounds) {  // shorter again, as a look shows it (min_rtt_look.hpp)
      longer_us_ = std::min(longer_us_, static_cast<std::uint32_t>(part_.rtt_us()));
      part_ = {};
    }
    window_.add(s);
    if (window_.took_ns < kWindowNs || window_.rounds < 2) return;
    latest_ = window_;
    window_ = {};
    if (const std::uint64_t turn = s.time_ns / kBestNs; turn != turn_) {
      turn_ = turn;
      earlier_best_bytes_per_ns_ = best_bytes_per_ns_;
      best_bytes_per_ns_ = 0;
    }
    best_bytes_per_ns_ = std::max(best_bytes_per_ns_, latest_.bytes_per_ns());
    if (latest_.rtt_us() >= kQueueComes * longer_us_) queue_came_ = true;
    if (by_look_ && queue_came_ && latest_.least_us <= kNearPath * longer_us_) {
      queue_came_ = false;
      forget_ns_ = s.time_ns + kForgetNs;
    }
  }

  bool seems_starved(const reinet_flow_stats& s) const {
    return standing_.took_ns >= kStandingNs && standing_.rounds >= kStandingRounds && latest_.took_ns > 0 &&
           is_sane_rtt(latest_.least_us * std::int64_t{1000}, s) &&
           latest_.is_steady(is_far(latest_.least_us, s) ? kSteadyFar : kSteady) &&
           (s.cap_pkts <= kMinCapPkts ||
            latest_.bytes_per_ns() < kLessThanBest * std::max(best_bytes_per_ns_, earlier_best_bytes_per_ns_));
  }

  // Returns whether the last answer is old, or was about a rate of which half is gone since: caps that still run down
  // leave next to nothing by the end of a rest.
  bool may_ask_again(const reinet_flow_stats& s) const {
    return s.time_ns >= next_ns_ || latest_.bytes_per_ns() < kGone * before_.bytes_per_ns();
  }

  // Returns whether the RTT is far below what it just was: a queue, if not all of it, has gone.
  bool drained(const reinet_flow_stats& s) const {
    return latest_.took_ns > 0 && kSteady * s.rtt_least_us < latest_.rtt_us();
  }

  // Returns whether those with whom the flow may share a queue have looked for the path's minimum RTT, and it saw none.
  bool was_looked_at(const reinet_flow_stats& s) const {
    const std::uint64_t settled_ns = kLookRounds * 1000 * s.srtt_us;
    constexpr std::uint64_t every_ns = kLookEveryNs;
    return s.time_ns >= settled_ns && (s.time_ns - settled_ns) / every_ns >= stands_ns_ / every_ns + 2;
  }

  void begin(const reinet_flow_stats& s) {
    asked_ns_ = s.time_ns;
    grown_ns_ = 0;
    before_ = latest_;
    after_ = {};
  }

  // What was sent with more in flight comes back a round trip later.
  void ask(const reinet_flow_stats& s) {
    const double more_pkts = kAskTimes * before_.inflight_pkts();
    if (grown_ns_ == 0 && flew_pkts(s) >= more_pkts) grown_ns_ = s.time_ns;
    if (grown_ns_ != 0 && s.time_ns > grown_ns_ + 1000ULL * before_.least_us) after_.add(s);
    if (after_.rounds >= 1 && after_.inflight_pkts() < more_pkts && s.time_ns < asked_ns_ + kMostAskNs) {
      grown_ns_ = 0;  // for a moment only, as where BBR probes
      after_ = {};
    }
    const bool changed = s.rtt_least_us < kLowerThanBefore * before_.least_us;
    if (!changed && after_.rounds < 1 && s.time_ns < asked_ns_ + kMostAskNs) return;
    const bool starved = !changed && after_.rounds >= 1 && after_.bytes_per_ns() >= kComesBack * before_.bytes_per_ns();
    if (starved) {
      learn(s, before_.least_us, false);
    } else {
      far_asks_ = 0;
      rest(s, false);
      asked_ns_ = 0;
      standing_ = {};
    }
  }

  // Takes what a question or a look has shown.
  void learn(const reinet_flow_stats& s, std::uint32_t path_us, bool by_look) {
    asked_ns_ = 0;
    standing_ = {};
    const bool far = is_far(path_us, s) && !(s.flags & REINET_FLAG_RELATIVE);  // which has room again on that path
    if (far && ++far_asks_ < kFarAsks) return;
    longer_us_ = path_us;  // the next time at once: it is still far_asks_
    forget_ns_ = s.time_ns + kForgetNs;
    by_look_ = by_look;
    queue_came_ = false;
    if (path_us > kOutageRtts * s.min_rtt_us) rest_ns_ = kMostRestNs;
    rest(s, !far);
  }

  void rest(const reinet_flow_stats& s, bool least) {
    rest_ns_ = least ? kLeastRestNs : std::clamp(2 * rest_ns_, kLeastRestNs, kMostRestNs);
    next_ns_ = s.time_ns + rest_ns_;
  }

  LookedAtPath look_;
  Stretch part_, window_, latest_, standing_, before_, after_;
  double best_bytes_per_ns_ = 0, earlier_best_bytes_per_ns_ = 0;
  std::uint64_t turn_ = 0, asked_ns_ = 0, grown_ns_ = 0, next_ns_ = 0, rest_ns_ = 0, forget_ns_ = 0;
  std::uint64_t stands_ns_ = 0;  // since when no RTT was near the path's or far below the last ones, 0 = no record yet
  bool by_look_ = false;         // whether a look has shown longer_us_
  bool queue_came_ = false;      // half as long as the path, since one was last seen to be gone
  int far_asks_ = 0;             // in a row that said so
  std::uint32_t longer_us_ = 0;  // the path's least RTT where that is above the kernel's, 0 = it is not
};

}  // namespace reinet

#endif
