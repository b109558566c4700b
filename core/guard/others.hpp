// SPDX-License-Identifier: Apache-2.0
//
// The queue of others: which flows are left alone for a while, because no cap shortens what they wait in.
//
// A flow that is alone in its queue waits for what it has in flight itself: capped lower, it soon waits less. Beside a
// plain flow it does not. Cubic fills whatever the capped flow leaves, so caps fall to their least, the delay stays,
// and the capped flow has given its share away for nothing. Copa knows such others by a queue that never drains, and
// then competes; here the flow's own congestion control does that, uncapped.
//
// The evidence is a stretch of kForeignRounds round trips, all under a cap, in which no RTT sample came down to three
// fifths of what the target leaves for queueing, and in which the flow delivered less than kForeignRateShare of what it
// did before. Either alone is a slow link's: there a flow waits long for the few packets that a cap always leaves, at
// the rate that it had; and where the link itself slows down, the queue drains within a few round trips under the next
// caps.
//
// Both together may still be a link that has become so slow that four packets take so much of the room. So then the
// queue is asked, twice: under twice the cap a flow that is alone waits twice as long at the same rate, and half as
// long again when that is taken back; one beside others waits about as long either way, and gets more and then less. A
// flow that is alone in either answer keeps its cap. One answer is not enough, because a cellular link that becomes
// faster just then gives more at the same wait too. Nor is it an answer when the flow waits much less while it sends
// more: then the link changed. A BBR, whose window does not follow a higher cap at once, has no such excuse.
//
// A link that serves its flows in turns is asked as well. There a flow waits for its turn, as long under any cap,
// though each turn drains the queue; what a lower cap takes is the rate, until next to nothing is left. The evidence is
// a stretch in which the mean RTT stays the same while the flow gets less than before: a queue of its own, on a link
// that changes, does not keep so still. Under twice the cap the mean RTT must stay, and there must be more, and then
// less; a flow that gets no more is alone.
//
// Both answers may still be a link's, and in 20 s a flow that is alone fills a deep queue. It shows at once, though:
// its wait grows without end at the rate that it had. Such a flow is capped again. One that is left alone for the
// second time in short is not asked so, because a foreign queue grows as well when somebody joins it.
//
// So a flow is left alone for about kLeastYieldNs at first, and for about twice as long each time that the same is seen
// again soon after. Then nobody asks, as a rule: the cap that came back is the question, and the wait and the rate
// without it are the other answer.
//
// What has no cap for a moment, as it is asked for its path (path_rtt.hpp), or sends little, as BBR looks for the
// path's minimum RTT, tells nothing new meanwhile, and nothing is forgotten: else the questions about the path, the
// first of which comes after half of the stretch, would put the end of it off again and again. A queue that drains then
// ends it.
//
// Capped flows that share a queue disturb each other in the same way for a moment, as when another one begins, and must
// come back to a short queue together: so all are left alone until the same times, the multiples of kLeastYieldNs of
// the records' clock or of twice, four or eight times that, as the looks of min_rtt_look.hpp begin together.
#ifndef REINET_OTHERS_HPP
#define REINET_OTHERS_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/states/feature.hpp"

namespace reinet {

// Simulated flows that were alone waited for 22 at most in this way, those beside Cubic or BBR mostly for over 50.
constexpr double kForeignRounds = 32;
// And so long at least: a flow that begins is uncapped for its first second, and what it has filled by then drains.
constexpr double kForeignNs = 2.5e9;
// Above what a model keeps as a queue of its own: a little more than half where one packet takes milliseconds.
constexpr double kForeignRoomShare = 0.6;
// Below one half, which is what a second flow of the same kind leaves to the first. Beside BBR a capped flow kept 0.37
// of what it had uncapped, beside Cubic 0.2.
constexpr double kForeignRateShare = 0.45;
// Or, for a link in turns: the running mean of the RTT over kLatestRounds stayed within so many times its least, and
// the rate below so much of what it had been. Over twelve recordings, two hours with Cubic and BBR, flows that were
// alone were asked so once in five minutes and never left alone by mistake. With 1.3 more links in turns were found on
// paths of 10 ms, but lone flows asked once in two minutes, and six times left alone for a second or two: on a path of
// 60 ms the 95th percentiles of delay rose by 2 %.
constexpr double kSteadyTimes = 1.2;
constexpr double kSteadyRateShare = 0.8;
// A flow that turned out to be alone is not asked so again for so long: each time its own queue doubles for a moment.
constexpr std::uint64_t kSteadyRestNs = 30'000'000'000;
// Longer than it takes to find out again, so that a flow beside others is plain for most of the time; and not so long
// that those who could share a short queue wait for it in vain. A multiple nearer than a quarter is passed over.
// Simulated, 45 hours of flows that were alone were uncapped by mistake for 364 s in all, where one question and 20 s
// each time had made it 1492 s, and flows beside a Cubic kept 0.61 of their throughput as before.
constexpr std::uint64_t kLeastYieldNs = 10'000'000'000;
constexpr unsigned kMostDoublings = 3;
// Who was left alone until so shortly before was so for a reason: less evidence is then enough.
constexpr std::uint64_t kSoonNs = 10'000'000'000;
constexpr double kAgainRounds = 10;
constexpr double kAgainNs = 0.8e9;
// Who has no cap, or is limited by its application, for longer begins anew. A question about the path takes up to 3 s,
// BBR's PROBE_RTT 200 ms and two round trips.
constexpr std::uint64_t kLongestPauseNs = 4'000'000'000;
// The queue is asked by so many times the stretch's mean cap, for so many round trips: in one the window doubles, in
// the next the ACKs of what it then sent come, and the rest counts. Alone, the flow then waits at least twice as long
// as in the latest round trips, in which a queue from before the link fell is gone, and at the rate that it had.
constexpr double kAskTimes = 2.0;
constexpr double kAskRounds = 5;
constexpr double kAskFillRounds = 2;
constexpr double kLatestRounds = 8;
constexpr double kAskedWaitTimes = 1.8;
constexpr double kAskedRateTimes = 1.2;
// A flow was alone after all that waits so many times as long without a cap and gets less than so many times as much.
// In a queue of others that is now three times as long, what was added is its own, two thirds, beside what it had
// before, kForeignRateShare at most. (A Cubic's own queue grows by less than half of itself between a loss and the
// next.)
constexpr double kAloneWaitTimes = 3.0;
constexpr double kAloneRateTimes = (kAloneWaitTimes - 1 + kForeignRateShare) / (kAloneWaitTimes * kForeignRateShare);
// Rates are means over so much: the bursts of a cellular link are none.
constexpr double kRateWindowNs = 1e9;

// What is known of one flow. The cap is
//
//         long waits at a low rate          as long, more came           as long, less came
//   usual ------------------------> raised -------------> taken_back ------------------> none, until until_ns_
//     ^                               |                        |                            |
//     +-------------------------------+------------------------+                            |
//     |  no long wait under a cap, or the answer is a lone flow's, or a changed link's      |
//     +-------------------------------------------------------------------------------------+
//              that time has come, or the flow turned out to wait for itself
class OthersQueue {
 public:
  // Takes a record with an RTT sample; returns whether the flow is to be left alone.
  bool update(const reinet_flow_stats& s) {
    window_.add(s);
    if (window_.took_ns >= kRateWindowNs) {
      peak_bytes_per_ns_ = std::max(peak_bytes_per_ns_, window_.bytes_per_ns());
      window_ = {};
    }
    const double passed_rounds = rounds_of(s);
    rtt_.add(s, passed_rounds);
    if (!goes_on_waiting(s)) {
      begin_stretch(s);
    } else if (!pauses(s) && s.time_ns >= until_ns_) {
      rounds_ += passed_rounds;
      if (cap_ == Cap::usual) {
        watch(s, passed_rounds);
      } else {
        ask(s, passed_rounds);
      }
    }
    if (s.time_ns < until_ns_ && s.cap_pkts == 0) see_uncapped(s, passed_rounds);
    return s.time_ns < until_ns_;
  }

  // Returns what a cap must leave the flow while its queue is asked; 0 = nothing more than usual.
  std::uint32_t least_pkts() const { return least_pkts_; }

 private:
  struct Delivered {
    double took_ns = 0, bytes = 0;
    void add(const reinet_flow_stats& s) {
      took_ns += static_cast<double>(s.period_ns);
      bytes += static_cast<double>(std::max(s.peer_delivered_bytes, s.delivered_bytes));
    }
    double bytes_per_ns() const { return bytes / took_ns; }
  };

  // Means over some of the latest round trips.
  struct Latest {
    double rounds = 0, cap_pkts = 0, wait_us = 0, bytes_per_round = 0, rounds_ns = 0;
    void add(const reinet_flow_stats& s, double passed_rounds) {
      rounds += passed_rounds;
      const double weight = weight_in_mean(passed_rounds, rounds, kLatestRounds);
      cap_pkts += weight * (s.cap_pkts - cap_pkts);
      wait_us += weight * (s.rtt_mean_us - 1.0 * s.min_rtt_us - wait_us);
      bytes_per_round += weight * (s.delivered_bytes / passed_rounds - bytes_per_round);
      rounds_ns += weight * (s.period_ns / passed_rounds - rounds_ns);
    }
    double bytes_per_ns() const { return bytes_per_round / rounds_ns; }
  };

  // The mean RTT over the latest round trips, and whether it has just become another one.
  struct SteadyRtt {
    double rounds = 0, mean_us = 0, least_us = 0, most_us = 0;
    void add(const reinet_flow_stats& s, double passed_rounds) {
      rounds += passed_rounds;
      mean_us += weight_in_mean(passed_rounds, rounds, kLatestRounds) * (s.rtt_mean_us - mean_us);
      least_us = std::min(least_us, mean_us);
      most_us = std::max(most_us, mean_us);
      changed = most_us > kSteadyTimes * least_us;
      if (changed) least_us = most_us = mean_us;
    }
    bool changed = true;
  };

  enum class Cap { usual, raised, taken_back };

  void begin_stretch(const reinet_flow_stats& s) {
    if (asked_rtt_us_ != 0 && !was_left_alone_soon_before(s)) rested_ns_ = s.time_ns + kSteadyRestNs;
    asked_rtt_us_ = 0;
    stretch_ = {};
    latest_ = asked_ = {};
    rounds_ = 0;
    least_pkts_ = 0;
    cap_ = Cap::usual;
    never_drains_ = is_steady_ = true;
  }

  bool was_left_alone_soon_before(const reinet_flow_stats& s) const {
    return until_ns_ != 0 && s.time_ns < until_ns_ + kSoonNs;
  }

  void watch(const reinet_flow_stats& s, double passed_rounds) {
    stretch_.add(s);
    latest_.add(s, passed_rounds);
    const bool again = was_left_alone_soon_before(s);
    if (rounds_ < (again ? kAgainRounds : kForeignRounds) || stretch_.took_ns < (again ? kAgainNs : kForeignNs)) return;
    const bool tells = again && never_drains_ && latest_.bytes_per_ns() < kForeignRateShare * plain_.bytes_per_ns();
    if (tells && !is_alone(latest_, plain_)) {
      asked_ = latest_;
      leave_alone(s);
      return;
    }
    if (stretch_.bytes_per_ns() >= (never_drains_ ? kForeignRateShare : kSteadyRateShare) * peak_bytes_per_ns_) {
      if (!never_drains_) begin_stretch(s);  // by now there may be a queue of others, which never drains
      return;
    }
    asked_rtt_us_ = rtt_.mean_us;
    is_steady_ = true;
    least_pkts_ = static_cast<std::uint32_t>(std::ceil(kAskTimes * latest_.cap_pkts));
    cap_ = Cap::raised;
    rounds_ = 0;
  }

  void ask(const reinet_flow_stats& s, double passed_rounds) {
    if (rounds_ > kAskFillRounds) asked_.add(s, passed_rounds);
    if (rounds_ < kAskRounds) return;
    const bool raised = cap_ == Cap::raised;
    if (is_alone(raised ? latest_ : asked_, raised ? asked_ : latest_)) {
      begin_stretch(s);
    } else if (raised) {
      cap_ = Cap::taken_back;
      latest_ = asked_;
      asked_ = {};
      rounds_ = 0;
      least_pkts_ = 0;
    } else {
      leave_alone(s);
    }
  }

  // Takes a record of a flow that is left alone, and ends that where the flow turns out to wait for itself.
  void see_uncapped(const reinet_flow_stats& s, double passed_rounds) {
    uncapped_.add(s);
    plain_.add(s, passed_rounds);
    if (doublings_ == 0 && plain_.rounds > kAskFillRounds &&
        s.srtt_us - 1.0 * s.min_rtt_us >= kAloneWaitTimes * before_wait_us_ &&
        uncapped_.bytes_per_ns() < kAloneRateTimes * before_bytes_per_ns_)
      until_ns_ = 0;
  }

  // Returns whether round trips under a cap and under one of kAskTimes as much are a lone flow's, or a link's that
  // changed: a wait that falls by so much as the flow sends more is nobody's queue. Where turns drain the queue the
  // wait may fall, too.
  bool is_alone(const Latest& low, const Latest& high) const {
    const bool same_rate = high.bytes_per_ns() < kAskedRateTimes * low.bytes_per_ns();
    if (!never_drains_) return same_rate;
    return (same_rate && high.wait_us >= kAskedWaitTimes * low.wait_us) ||
           low.wait_us >= kAskedWaitTimes * high.wait_us;
  }

  void leave_alone(const reinet_flow_stats& s) {
    doublings_ = was_left_alone_soon_before(s) ? std::min(doublings_ + 1, kMostDoublings) : 0;
    const std::uint64_t yield_ns = kLeastYieldNs << doublings_;
    until_ns_ = ((s.time_ns + yield_ns / 4) / yield_ns + 1) * yield_ns;
    before_wait_us_ = asked_.wait_us;
    before_bytes_per_ns_ = std::max(asked_.bytes_per_ns(), stretch_.bytes_per_ns());
    uncapped_ = {};
    plain_ = {};
    begin_stretch(s);
    rested_ns_ = 0;
  }

  // Returns whether the record tells nothing of a cap.
  static bool pauses(const reinet_flow_stats& s) { return s.cap_pkts == 0 || s.flags & REINET_FLAG_APP_LIMITED; }

  // Returns whether the stretch goes on, as one in which the queue never drains or as one in which the RTT is the same.
  bool goes_on_waiting(const reinet_flow_stats& s) {
    pause_ns_ = pauses(s) ? pause_ns_ + s.period_ns : 0;
    if (pause_ns_ > kLongestPauseNs || s.flags & REINET_FLAG_RESTARTED) return false;
    const double long_us = s.min_rtt_us + kForeignRoomShare * (static_cast<double>(s.target_us) - s.min_rtt_us);
    never_drains_ &= s.rtt_least_us > long_us;
    is_steady_ &= cap_ != Cap::usual ? rtt_.mean_us <= kSteadyTimes * asked_rtt_us_
                                     : !rtt_.changed && rtt_.mean_us > long_us && s.time_ns >= rested_ns_;
    return never_drains_ || is_steady_;
  }

  Delivered window_, stretch_, uncapped_;
  Latest latest_, asked_, plain_;
  SteadyRtt rtt_;
  double rounds_ = 0, asked_rtt_us_ = 0, peak_bytes_per_ns_ = 0, before_wait_us_ = 0, before_bytes_per_ns_ = 0;
  std::uint64_t until_ns_ = 0, rested_ns_ = 0, pause_ns_ = 0;
  std::uint32_t least_pkts_ = 0;
  Cap cap_ = Cap::usual;
  bool never_drains_ = true, is_steady_ = true;  // the whole stretch; one of them at least
  unsigned doublings_ = 0;
};

}  // namespace reinet

#endif
