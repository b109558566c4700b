// SPDX-License-Identifier: Apache-2.0
//
// The answer to a record without the interpreter: target, state, network, head, gate and guard, for the flows of one
// policy. A decision loop hands it to its shim, which answers records as they come and tells the loop of it now and
// then; what is slow or rare (new policies, comparisons, renewals, logs) stays the loop's.
#ifndef REINET_REFLEX_HPP
#define REINET_REFLEX_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/flow_stats.h"
#include "core/guard/guard.hpp"
#include "core/peers/peers.hpp"
#include "core/states/calm.hpp"
#include "core/states/network.hpp"
#include "core/states/state_bank.hpp"
#include "core/states/target.hpp"

namespace reinet {

// What became of a record.
enum class Answer : std::uint8_t {
  none = 0,     // it asked for no decision: its flow's cap stays
  decided = 1,  // the verdict's cap is to act
  closed = 2,   // so it is, and the flow's gate is closed: nothing was asked of the network for its own sake
  stale = 3,    // it was too old to decide on: its flow is to be uncapped
};

// For how long whoever answers records rests between two looks at them. Where records come often, some of them are
// waited for: each look costs as much as many of them.
class Rest {
 public:
  // Returns for how long to rest after so many records, at least one, that have come now.
  std::uint64_t after(std::uint64_t came_ns, std::size_t records, std::uint64_t most_ns) {
    const std::uint64_t apart_ns = (came_ns - latest_ns_) / records;
    latest_ns_ = came_ns;
    return apart_ns * kLeastRecords > most_ns ? 0 : std::min(most_ns, apart_ns * kWorthRecords);
  }

 private:
  // After so many records a look at the next ones is worth its system calls, and a tick of a loop in Python takes them
  // together within half a millisecond (docs/operate-measured.md).
  static constexpr std::uint64_t kWorthRecords = 20;
  // A rest in which fewer are to be expected saves nothing.
  static constexpr std::uint64_t kLeastRecords = 2;

  std::uint64_t latest_ns_ = 0;  // when records last came
};

struct ReflexRules {
  Head head = Head::wide;
  double calm_rtts = 0;
  std::uint32_t ceiling_pkts = kMaxCapPkts;
  std::uint64_t lease_ns = 0;  // older records are stale
};

class Reflex {
 public:
  // Bank and guards are the loop's own; it must not use them while records are answered.
  Reflex(StateBank& bank, GuardBank& guards, Network network, const ReflexRules& rules)
      : bank_(bank), guards_(guards), network_(std::move(network)), rules_(rules) {
    if (network_.inputs() != bank.feature_set().state_size() || network_.inputs() > kMostUnits)
      throw std::invalid_argument("the network does not take the bank's states");
  }

  void set_target(const TargetLine& target) { target_ = target; }
  std::uint64_t lease_ns() const { return rules_.lease_ns; }
  std::size_t state_size() const { return bank_.feature_set().state_size(); }

  // Takes a record of a flow that goes on, and writes into it what flows know together, and the flow's target.
  Answer answer(reinet_flow_stats& s, std::uint64_t now_ns, Verdict& verdict) {
    const std::lock_guard lock(lock_);
    own(s.slot, s.cookie);
    if (peers_) peers_->annotate(s);
    target_.write(s, bank_.longer_us(s.slot));
    std::array<float, kMostUnits> state;
    const Update update = bank_.update(s.slot, s, state.data());
    verdict = {Refusal::none, 0, 0, s.target_us, s.min_rtt_us};
    if (!update.decided) return Answer::none;
    if (now_ns > s.time_ns + rules_.lease_ns) return Answer::stale;
    const std::uint32_t wanted_pkts = learned_cap_pkts(rules_.head, network_.act(state.data()), s, update.rule_pkts,
                                                       rules_.calm_rtts, rules_.ceiling_pkts);
    verdict = guards_.judge(s, wanted_pkts, update.may_cap, true);
    return update.may_cap ? Answer::decided : Answer::closed;
  }

  // Forgets a flow that ended. A socket that connects anew is another flow of the same cookie, most often in the same
  // slot.
  void forget(std::size_t slot, std::uint64_t cookie) {
    const std::lock_guard lock(lock_);
    if (slot < owners_.size() && owners_[slot] == cookie) owners_[slot] = 0;
    guards_.forget(slot, cookie);
    if (peers_) peers_->forget(slot, cookie);
  }

  // Says whose the slots are, which the loop may have changed meanwhile, and what flows know together: it is the loop's
  // own as well.
  void begin(std::vector<std::uint64_t> owners, Peers& peers) {
    const std::lock_guard lock(lock_);
    peers_ = &peers;
    owners_ = std::move(owners);
  }

  // Writes the state of a slot's flow and returns the hand rule's product; any thread may ask.
  float show(std::size_t slot, float* state) {
    const std::lock_guard lock(lock_);
    if (slot >= bank_.capacity()) throw std::out_of_range("there is no such slot");
    return bank_.show(slot, state);
  }

 private:
  // A slot whose flow is another one begins anew.
  void own(std::size_t slot, std::uint64_t cookie) {
    if (slot >= bank_.capacity()) bank_.grow(std::max(slot + 1, 2 * bank_.capacity()));
    if (slot >= owners_.size()) owners_.resize(bank_.capacity());
    if (owners_[slot] == cookie) return;
    bank_.reset(slot);
    owners_[slot] = cookie;
  }

  StateBank& bank_;
  GuardBank& guards_;
  Network network_;
  ReflexRules rules_;
  TargetLine target_;
  Peers* peers_ = nullptr;
  std::vector<std::uint64_t> owners_;  // by slot; 0 = nobody
  std::mutex lock_;                    // for show(); all else is called by the loop alone
};

}  // namespace reinet

#endif
