// SPDX-License-Identifier: Apache-2.0
//
// What flows know together. A server has several connections to one client at once, and they share the queue of its
// access link: then what one of them sees alone is misleading. They are a group; where the server's own link is the
// narrow one, all of its flows are.
//
//   the path   A flow that began behind the others' queue takes that for the path: its target seems out of reach,
//              its gate sees no queue, and uncapped it keeps the others from ever draining it. Another flow to the
//              same peer may know better. It lends its minimum RTT to those whose RTT is the same as its own for
//              kAgreeRounds round trips: in one queue all wait equally long, on two paths behind one address they
//              do not. Nor for longer than kLentNs: within that time flows look for their path together
//              (core/guard/min_rtt_look.hpp), and a true minimum has become their own. Nor is it lent on when the
//              flow that saw it is gone, for the path may have become longer since.
//   the rate   Flows of one queue take turns: what one of them gets in 20 ms goes up and down where the link's rate
//              does not, and by its peaks a policy takes it for one that varies. The sum is the link's; of that
//              each sees its share of the last second (by_share of core/states/feature.hpp). And a flow gets less
//              when another one begins; the sum does not, unless the link fell or somebody else takes the rest
//              (core/guard/others.hpp). The sum is of the capped ones alone.
//   company    Whether another flow of the group that may be capped was answered lately (core/guard/path_rtt.hpp).
//              Those of other groups do not count: a server of many clients always has some, and hardly ever shares a
//              queue with them.
//
// All of it is written into the record, before anybody else sees it.
#ifndef REINET_PEERS_HPP
#define REINET_PEERS_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/flow_stats.h"
#include "core/guard/gate.hpp"
#include "core/peers/peer.h"
#include "core/states/feature.hpp"
#include "core/states/target.hpp"

namespace reinet {

// So long after its last record a flow is no longer there for others.
constexpr std::uint64_t kGoneNs = 5'000'000'000;

// Whether there are other flows: the latest answers, of one flow and of any other. Somebody who is gone may be sent to
// for many minutes, and answers nothing.
class Company {
 public:
  // Takes a record of a flow, by a number of its own; returns whether another one has been answered lately.
  bool has(std::uint64_t flow, const reinet_flow_stats& s) {
    if (has_sample(s)) {
      if (latest_.flow != flow) other_ = latest_;
      latest_ = {flow, s.time_ns};
    }
    const Answer& others = latest_.flow != flow ? latest_ : other_;
    const auto [earlier_ns, later_ns] = std::minmax(others.time_ns, s.time_ns);
    return others.time_ns != 0 && later_ns - earlier_ns <= kGoneNs;
  }

 private:
  struct Answer {
    std::uint64_t flow = 0, time_ns = 0;  // 0 = there was none
  };
  Answer latest_, other_;
};

// What is remembered of a flow for what it shares with others.
struct Neighbour {
  std::uint64_t group = ~0ULL;                      // where it was at its latest record
  std::uint64_t began_bytes = 0, ended_bytes = 0;   // what the group had delivered by then, and by its end
  bool period_goes_on = false;                      // that record was a silence's, and the next tells of it again
  std::uint64_t counted_bytes = 0, counted_ns = 0;  // what the flow had delivered of that, and in which time
  double latest_bytes = 0, latest_group_bytes = 0;  // delivered in about the last kShareNs
  double rounds = 0, apart = 0;  // for how many round trips it was compared, and how far the two RTTs are apart
  std::uint32_t lent_us = 0;     // the minimum RTT of another flow
  std::uint64_t until_ns = 0;    // it is given back
  std::uint64_t rests_ns = 0;    // none is lent again before
};

// The flows to one peer.
class PeerGroup {
 public:
  explicit PeerGroup(std::uint64_t number = 0) : number_(number) {}

  // Takes a flow's record and writes into it what the group knows.
  void see(std::uint64_t flow, Neighbour& own, reinet_flow_stats& s) {
    if (company_.has(flow, s)) s.flags |= REINET_FLAG_COMPANY;
    count(own, s);
    const std::uint32_t own_us = s.min_rtt_us;
    if (own.lent_us != 0 && s.time_ns < own.until_ns) s.min_rtt_us = std::min(s.min_rtt_us, own.lent_us);
    if (!has_sample(s)) return;
    if (lender_ == 0 || flow == lender_ || s.time_ns >= knew_ns_ + kGoneNs || own_us <= least_us_) {
      lender_ = flow;
      knew_ns_ = s.time_ns;
      least_us_ = own_us;
      hear(own, s);
    } else if (s.min_rtt_us <= least_us_) {  // lent: it waits in the lender's queue, and tells how long that is
      hear(own, s);
    } else if (s.min_rtt_us > kLongerThan * least_us_ && s.time_ns >= own.rests_ns &&
               s.time_ns < heard_ns_ + kFreshNs && agrees(own, s)) {
      own.lent_us = s.min_rtt_us = least_us_;
      own.until_ns = s.time_ns + kLentNs;
      own.rests_ns = own.until_ns + kRestNs;
      own.rounds = 0;
    }
  }

 private:
  // Minimum RTTs nearer to each other are one path's.
  static constexpr double kLongerThan = 1.2;
  // The mean of |log| of the ratio of two RTTs. Simulated flows of one queue are 0.01 to 0.04 apart over steady links,
  // for their records end at different instants, and 0.10 to 0.14 over links whose rate jumps. A wider tolerance takes
  // flows of two paths for those of one.
  static constexpr double kApart = 0.15;
  // Longer than flows take turns, shorter than a link's rate stays what it is.
  static constexpr double kShareNs = 1e9;
  static constexpr double kAgreeRounds = 8;
  static constexpr double kMeanRounds = 8;
  // No RTT is compared with one that is older.
  static constexpr std::uint64_t kFreshNs = 1'000'000'000;
  static constexpr std::uint64_t kLentNs = 2 * kLookEveryNs;
  // What was lent and never became the flow's own was another path's.
  static constexpr std::uint64_t kRestNs = 60'000'000'000;

  // Adds what the flow has delivered, and writes what all have in the time of its record, and its share of that. A
  // silence is told of again by the record after it (core/period.h): it counts once. A flow that is not capped is
  // somebody else to those that are: it takes what they leave.
  void count(Neighbour& own, reinet_flow_stats& s) {
    if (own.group != number_)
      own = {.group = number_, .began_bytes = delivered_bytes_, .ended_bytes = delivered_bytes_};
    if (!own.period_goes_on) own.began_bytes = own.ended_bytes;
    const std::uint64_t counts_bytes = s.cap_pkts != 0 ? s.delivered_bytes : 0;
    const std::uint64_t new_bytes = counts_bytes - std::min(own.counted_bytes, counts_bytes);
    const std::uint64_t new_ns = s.period_ns - std::min(own.counted_ns, s.period_ns);
    delivered_bytes_ += new_bytes;
    if (s.cap_pkts != 0) s.peer_delivered_bytes = delivered_bytes_ - own.began_bytes;
    if (!(s.flags & REINET_FLAG_COMPANY) || s.cap_pkts == 0) {
      own.latest_bytes = own.latest_group_bytes = 0;
      s.share_bytes = s.delivered_bytes;
    } else {
      const double stays = std::exp(-static_cast<double>(new_ns) / kShareNs);
      own.latest_bytes = stays * own.latest_bytes + static_cast<double>(new_bytes);
      own.latest_group_bytes = stays * own.latest_group_bytes + static_cast<double>(delivered_bytes_ - own.ended_bytes);
      const double share = own.latest_group_bytes > 0 ? own.latest_bytes / own.latest_group_bytes : 0;
      s.share_bytes = static_cast<std::uint64_t>(std::llround(share * static_cast<double>(s.peer_delivered_bytes)));
    }
    own.period_goes_on = s.flags & REINET_FLAG_SILENCE;
    own.counted_bytes = own.period_goes_on ? counts_bytes : 0;
    own.counted_ns = own.period_goes_on ? s.period_ns : 0;
    own.ended_bytes = delivered_bytes_;
  }

  void hear(Neighbour& own, const reinet_flow_stats& s) {
    heard_ns_ = s.time_ns;
    rtt_us_ = s.rtt_mean_us;
    own.rounds = 0;
  }

  // Returns whether the flow has been waiting as long as the one that knows of a shorter path.
  bool agrees(Neighbour& own, const reinet_flow_stats& s) const {
    const double passed_rounds = rounds_of(s);
    if (own.rounds == 0) own.apart = 0;
    own.rounds += passed_rounds;
    const double weight = weight_in_mean(passed_rounds, own.rounds, kMeanRounds);
    own.apart += weight * (std::abs(std::log(1.0 * s.rtt_mean_us / rtt_us_)) - own.apart);
    return own.rounds >= kAgreeRounds && own.apart <= kApart;
  }

  Company company_;
  std::uint64_t number_;  // among those of its place
  std::uint64_t delivered_bytes_ = 0;
  std::uint64_t lender_ = 0, knew_ns_ = 0;   // the flow that has seen the shortest path itself, its latest record
  std::uint64_t heard_ns_ = 0;               // the latest record of it, or of one to which that was lent
  std::uint32_t least_us_ = 0, rtt_us_ = 1;  // what it has seen, and how long those wait
};

// Takes a record before anybody else does. group: the flow's, null = none. flow: a number of its own, not 0.
inline void annotate(PeerGroup* group, std::uint64_t flow, Neighbour& own, reinet_flow_stats& s) {
  s.flags &= ~static_cast<std::uint32_t>(REINET_FLAG_COMPANY);
  s.peer_delivered_bytes = s.share_bytes = s.delivered_bytes;
  const bool may_be_capped = rtt_known(s.min_rtt_us) && s.min_rtt_us >= kLeastPathRttUs;
  if (group != nullptr && may_be_capped) group->see(flow, own, s);
}

// The groups of a host, in memory of a fixed size: where two peers have the same place the later one has it.
class PeerTable {
 public:
  void annotate(Neighbour& own, reinet_flow_stats& s) {
    Place& place = places_[s.peer * kGoldenRatio >> (64 - kPlacesLog2)];
    if (s.peer != 0 && place.peer != s.peer) place = {s.peer, PeerGroup(++groups_)};
    reinet::annotate(s.peer != 0 ? &place.group : nullptr, s.cookie, own, s);
  }

 private:
  static constexpr unsigned kPlacesLog2 = 10;
  static constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // spreads neighbours (Fibonacci hashing)
  struct Place {
    std::uint64_t peer = 0;
    PeerGroup group;
  };
  std::uint64_t groups_ = 0;  // made so far
  std::array<Place, std::size_t{1} << kPlacesLog2> places_;
};

// The same for flows named by slot and cookie.
class Peers {
 public:
  // shared_uplink: the host's own link is the narrow one, as a cellular modem's: its flows share a queue whoever their
  // peers are. What programs say of flows of theirs goes by their own word.
  explicit Peers(bool shared_uplink) : shared_uplink_(shared_uplink) {}

  void annotate(reinet_flow_stats& s) {
    if (shared_uplink_ && !reinet_is_peer_of_program(s.peer)) s.peer = REINET_PEER_EVERYBODY;
    table_.annotate(by_slot_.of(s), s);
  }
  void forget(std::size_t slot, std::uint64_t cookie) { by_slot_.forget(slot, cookie); }

 private:
  bool shared_uplink_;
  PeerTable table_;
  BySlot<Neighbour> by_slot_;
};

}  // namespace reinet

#endif
