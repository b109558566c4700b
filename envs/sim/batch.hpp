// SPDX-License-Identifier: Apache-2.0
// A batch of simulated links: rows that are stepped together, each to its next record, whose state, reward and rule go
// into arrays of the caller's. Threads share the rows; a row's results depend on nothing but its own setup and caps.
#ifndef REINET_BATCH_HPP
#define REINET_BATCH_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/peers/peers.hpp"
#include "core/states/heads.hpp"
#include "core/states/state.hpp"
#include "envs/sim/make_simulation.hpp"
#include "envs/sim/workers.hpp"

namespace reinet {

// A trace and what keeps its memory alive.
struct SharedTrace {
  std::span<const std::uint32_t> ms;
  std::shared_ptr<const void> owner;
};

// The traces of a path: the link's, or in a cell one for each flow, and that of the ACKs' direction, if any.
struct PathTraces {
  std::vector<SharedTrace> links;
  SharedTrace uplink;
};

// What a batch's flows are seen with, and what their actions mean.
struct View {
  const FeatureSet& set;
  StateConfig config;
  Head head;
};

// Where results go: arrays of one entry per row, of a whole state in states. They outlive the batch.
struct BatchOutputs {
  float* states;
  float* rewards;
  std::uint8_t* stats;  // reinet_flow_stats, perhaps unaligned
  float* rule_pkts;
  std::uint8_t* decided;
  std::uint8_t* may_cap;
};

// What a row's link has logged since its reset, and in which time.
struct RowLog {
  const LinkLog& link;
  std::vector<double> opportunity_ms;
  std::uint64_t start_ms, end_ms;
};

// A link whose stepped flows have no record any more: what was wrong, where, and how to mend it.
struct Stalled : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Batch {
 public:
  Batch(std::size_t rows, const reinet_period_config& period, View view, bool record_log, const BatchOutputs& outputs,
        std::size_t threads);

  std::size_t size() const { return rows_.size(); }
  // Returns whether this is a forked child, without the threads that the batch needs.
  bool lost_threads() const { return workers_.lost(); }

  // Gives a row another link, from its next reset on. Throws std::invalid_argument.
  void set_link(std::size_t row, const LinkOptions& link, PathTraces traces);
  const View& view() const { return view_; }

  // Starts new flows in these rows; run() then takes each to its first record. It, and what steps, throws Stalled where
  // one has none; the others have theirs, and that one needs a new start.
  void start(std::span<const std::int32_t> rows);
  void run(std::span<const std::int32_t> rows);

  // These run every row to its next record, under the caps that the head makes of actions, none where the gate is
  // closed, or under caps as they are given (0 = none). A record without a sample asks for no decision: no action
  // changes the cap then, but who gives caps says for each record what holds.
  void step(std::span<const float> actions);
  void step_caps(std::span<const std::uint32_t> caps_pkts);

  void clairvoyant_caps(std::span<const std::uint64_t> horizons_ms, std::span<std::uint32_t> caps_pkts) const;
  // Writes, row by row, what only a simulator knows: the packets queued, those that the link could carry of which the
  // sender cannot have heard yet, and those that it can carry in each of these times from now on.
  void hidden(std::span<const std::uint64_t> horizons_ms, float* values) const;
  PacketCounts packets(std::size_t row) const { return at(row).simulation->packets(); }
  const std::vector<ObjectTimes>& objects(std::size_t row, std::uint32_t flow) const {
    return at(row).simulation->objects(flow);
  }
  std::size_t memory_bytes(std::size_t row) const;
  // Returns the row's log, with opportunities up to that time alone: where nothing came back for long, a row is stepped
  // years beyond what its caller wants to know of, and its trace has billions of them.
  RowLog log(std::size_t row, std::uint64_t until_ms) const;

 private:
  static constexpr std::size_t kMaxFlows = 65535;  // Packet::flow has 16 bits

  struct Row {
    std::unique_ptr<Simulation> simulation;
    std::unique_ptr<LinkLog> log;
    std::unique_ptr<FlowStates> states;  // of the flows
    std::vector<PeerGroup> groups;       // by queue
    std::vector<Neighbour> neighbours;   // by flow
    std::uint32_t flow = 0;              // the one that the latest record is about
    std::uint64_t start_ms = 0;
    bool stalled = false;  // no record came
    PathTraces traces;     // of the running simulation
    // Used from the next reset on.
    LinkOptions next_link;
    PathTraces next_traces;
  };

  void start(Row& r);
  void run_capped(std::size_t row, std::uint32_t cap_pkts);
  void run(std::size_t row);
  void refuse_stalled();
  Offer offer_of(const Row& r) const;
  void require_started() const;
  const Row& at(std::size_t row) const;

  reinet_period_config period_;
  View view_;
  bool record_log_;
  std::vector<Row> rows_;
  std::size_t started_ = 0;  // rows that have a simulation
  std::atomic<bool> any_stalled_ = false;
  BatchOutputs outputs_;
  Workers workers_;
};

}  // namespace reinet

#endif
