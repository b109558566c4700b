// SPDX-License-Identifier: Apache-2.0
//
// The look for a path's true minimum RTT: which long flows are held back for it, when, and how far.
//
// A flow that began while a queue stood has never seen its path without one: behind the flows of a shared bottleneck,
// or on a slow or stalled link. Uncapped it never will, and capped no sooner, where others are capped as well and keep
// the queue at their target. It takes that queue for the path, so its target seems out of reach, or leaves it more room
// than the others, and it takes their share. Held below what the path can carry all of them drain the queue and see the
// path as it is, which is the idea of BBR's PROBE_RTT; what the kernel then calls a flow's minimum RTT counts.
//
// One flow alone drains no queue that several keep. So looks begin at fixed times, the multiples of kLookEveryNs of the
// clock of the records, CLOCK_MONOTONIC, and flows of one host hold back together without having to know of each other.
// (Flows of two hosts do not. BBR's find each other because a drained queue is news to all of them.)
//
// A look costs what the link could have carried meanwhile and until the window has grown back. It is not for a short
// flow, which is over before a cap could serve it, and not for one whose RTT came near its minimum since the last such
// time: its queue drains by itself, as it does on nearly every cellular recording. So only a flow takes part that
// somebody would cap, that has been busy for kLookAfterNs, neither limited by its application nor idle for longer than
// an RTT since, and whose queue stood all the time. A look goes down step by step: where the RTT falls, the next step
// goes below that.
//
//     first record       busy for kLookAfterNs, queue stood      kStepRounds, nothing lower
//     -----------> waiting ------------------------------> held ---------------------------+
//                  ^  ^    at a multiple of kLookEveryNs   ^ |                             |
//                  |  |                                    +-+ a lower RTT: the next step  |
//                  |  +--- application-limited, or idle, meanwhile                         |
//                  +-----------------------------------------------------------------------+
#ifndef REINET_MIN_RTT_LOOK_HPP
#define REINET_MIN_RTT_LOOK_HPP

#include <algorithm>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/states/heads.hpp"

namespace reinet {

// A flow that was busy for so long is a long one. The longer it waits, the longer it takes more than its share.
constexpr std::int64_t kLookAfterNs = 5'000'000'000;
// BBR's window for its minimum RTT (bbr_min_rtt_win_sec of tcp_bbr.c).
constexpr std::int64_t kLookEveryNs = 10'000'000'000;
// A flow whose target stays out of reach after a look runs uncapped, helps nobody by looking, and rests so long.
constexpr std::int64_t kLookRestNs = 60'000'000'000;
// About as much is taken as a loss takes from Cubic (0.7), and the window is soon back; a rate that was estimated a
// third too high still lets the queue drain.
constexpr double kHoldPerPath = 0.75;
// A minimum RTT below so much of the one before the step was a queue's; less is what late hosts and ACKs make of it.
constexpr double kFallsBelow = 0.9;
// An RTT up to so many times the minimum shows a queue that drains by itself.
constexpr double kNearMinimum = 1.1;
// A queue drains in one round trip, the look at the path takes another.
constexpr std::int64_t kStepRounds = 2;
// By then what a look shows has come back: two to drain, two to look, and one more.
constexpr std::uint64_t kLookRounds = 5;
// A round trip counts so long at most, lest an outage during a look make it last as long.
constexpr std::int64_t kLongestRoundNs = 300'000'000;
// Above so many times the minimum, and above kLongestRoundNs, the RTT says how long an outage was, and in flight / RTT
// is not the path's rate: nobody looks then, nor asks whether the path has become longer (path_rtt.hpp). A queue that a
// flow builds behind an inflated minimum is less.
constexpr std::int64_t kOutageRtts = 4;

// Returns whether this RTT may be that of a path, with or without a queue, rather than an outage's.
inline bool is_sane_rtt(std::int64_t rtt_ns, const reinet_flow_stats& s) {
  return rtt_ns <= std::max(kOutageRtts * 1000 * s.min_rtt_us, kLongestRoundNs);
}

// Returns a share of what the path holds: in flight / RTT is the rate, and that x min RTT is what it holds.
inline std::uint32_t look_pkts(const reinet_flow_stats& s, std::uint32_t min_rtt_us) {
  const double queueless = static_cast<double>(min_rtt_us) / std::max(s.rtt_mean_us, 1U);
  return static_cast<std::uint32_t>(
      std::clamp<double>(kHoldPerPath * queueless * s.inflight_pkts, kMinCapPkts, kMaxCapPkts));
}

// What is known of one flow.
class MinRttLook {
 public:
  // Takes a record with an RTT sample; returns what the flow may have in flight while it is looked at, 0 = it is not.
  // capped: the agent would cap it, others are not looked at. out_of_reach: its target cannot be kept by what is known
  // of its minimum RTT.
  std::uint32_t hold_pkts(const reinet_flow_stats& s, bool out_of_reach, bool capped) {
    const auto now_ns = static_cast<std::int64_t>(s.time_ns);
    const bool busy = !(s.flags & (REINET_FLAG_APP_LIMITED | REINET_FLAG_RESTARTED));
    if (!busy) {
      busy_ns_ = until_ns_ = kNever;
    } else if (busy_ns_ == kNever) {
      busy_ns_ = now_ns;
    }
    stands_ = stands_ && s.rtt_least_us > kNearMinimum * s.min_rtt_us;

    const std::int64_t turn = now_ns / kLookEveryNs;
    const bool held = until_ns_ != kNever, due = turn != turn_;
    const std::int64_t rtt_ns = s.rtt_mean_us * std::int64_t{1000};
    bool steps = false;
    if (held && now_ns >= until_ns_) {
      until_ns_ = kNever;
      steps = s.min_rtt_us < kFallsBelow * known_us_;
      if (!steps && out_of_reach) rests_ns_ = now_ns + kLookRestNs;
    }
    if (due) {
      const bool is_long = busy && now_ns - busy_ns_ >= kLookAfterNs;
      steps = steps || (!held && capped && is_long && is_sane_rtt(rtt_ns, s) && stands_ && now_ns >= rests_ns_);
      stands_ = true;
      turn_ = turn;
    }
    if (steps) {
      until_ns_ = now_ns + kStepRounds * std::min(rtt_ns, kLongestRoundNs);
      known_us_ = s.min_rtt_us;
      hold_pkts_ = look_pkts(s, s.min_rtt_us);
    }
    return until_ns_ != kNever ? hold_pkts_ : 0;
  }

 private:
  static constexpr std::int64_t kNever = -1;

  std::int64_t busy_ns_ = kNever;   // since when the flow has been busy, of unbroken evidence
  std::int64_t turn_ = kNever;      // how many times for a look had passed at the latest record
  std::int64_t until_ns_ = kNever;  // when the step that is under way ends
  std::int64_t rests_ns_ = kNever;  // no look before
  std::uint32_t hold_pkts_ = 0;     // what the flow may have in flight meanwhile
  std::uint32_t known_us_ = 0;      // its minimum RTT before the step
  bool stands_ = false;             // no RTT near the minimum was seen since the latest time for a look
};

}  // namespace reinet

#endif
