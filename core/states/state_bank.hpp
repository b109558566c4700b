// SPDX-License-Identifier: Apache-2.0
// States of up to so many flows, one per row: those of a daemon or of an environment on a real link.
#ifndef REINET_STATE_BANK_HPP
#define REINET_STATE_BANK_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "core/states/state.hpp"

namespace reinet {

class StateBank {
 public:
  // Where the results of n records go: n states one after the other, n of each other array.
  struct Outputs {
    float* states;
    float* rewards;
    float* rule_pkts;
    std::uint8_t* decided;
    std::uint8_t* may_cap;
  };

  StateBank(std::size_t capacity, const FeatureSet& set, const NormaliserTable& table, RewardKind reward,
            double delay_weight, double room_beyond_us)
      : set_(set),
        config_(state_config(set, table, reward, delay_weight, room_beyond_us)),
        flows_(set.make(reward, capacity)) {}

  const FeatureSet& feature_set() const { return set_; }
  bool needs_offers() const { return config_.reward.kind != RewardKind::deepcc; }
  std::size_t capacity() const { return flows_->size(); }
  void grow(std::size_t capacity) {
    if (capacity < flows_->size())
      throw std::invalid_argument("a state bank does not shrink: rows in use would vanish");
    flows_->grow(capacity);
  }

  // Throws std::out_of_range for a bad row, before anything changes.
  void reset(std::span<const std::int32_t> rows) {
    check(rows);
    for (const std::int32_t row : rows) flows_->reset(static_cast<std::size_t>(row));
  }

  // Takes a record of the flow in a row that there is.
  Update update(std::size_t row, const reinet_flow_stats& record, float* state) {
    return flows_->update(row, record, config_, Offer{}, state);
  }
  void reset(std::size_t row) { flows_->reset(row); }
  std::uint32_t longer_us(std::size_t row) const { return flows_->longer_us(row); }
  // Writes the state as it is; returns the hand rule's product.
  float show(std::size_t row, float* state) const { return flows_->show(row, state); }

  // Writes that of one row after the other.
  void longer_us(std::span<const std::int32_t> rows, std::uint32_t* found_us) const {
    check(rows);
    for (const std::int32_t row : rows) *found_us++ = longer_us(static_cast<std::size_t>(row));
  }

  // Takes one record per entry of rows, perhaps unaligned; offers has as many, or none where the reward needs none.
  void update(std::span<const std::int32_t> rows, const std::uint8_t* stats, std::span<const Offer> offers,
              const Outputs& out) {
    check(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      reinet_flow_stats record;
      std::memcpy(&record, stats + i * sizeof(record), sizeof(record));
      const Offer offer = offers.empty() ? Offer{} : offers[i];
      const Update update =
          flows_->update(static_cast<std::size_t>(rows[i]), record, config_, offer, out.states + i * set_.state_size());
      out.decided[i] = update.decided;
      out.rewards[i] = update.reward;
      out.rule_pkts[i] = update.rule_pkts;
      out.may_cap[i] = update.may_cap;
    }
  }

 private:
  void check(std::span<const std::int32_t> rows) const {
    for (const std::int32_t row : rows) {
      if (row < 0 || static_cast<std::size_t>(row) >= flows_->size())
        throw std::out_of_range("row " + std::to_string(row) + " is outside a state bank of " +
                                std::to_string(flows_->size()) + " rows");
    }
  }

  const FeatureSet& set_;
  StateConfig config_;
  std::unique_ptr<FlowStates> flows_;
};

}  // namespace reinet

#endif
