// SPDX-License-Identifier: Apache-2.0
//
// The cap of one connection: a lease, renewed by a law in this process at each look, or by the daemon.
#ifndef REINET_ALCC_LEASED_CAP_HPP
#define REINET_ALCC_LEASED_CAP_HPP

#include <cstdint>

#include "alcc/laws/law.hpp"
#include "alcc/link/link.hpp"
#include "alcc/stats/kernel_view.hpp"
#include "core/flow_stats.h"
#include "core/peers/peers.hpp"

namespace reinet::alcc {

constexpr std::uint64_t kLeaseNs = 500'000'000;  // as kshim/leases.py

class LeasedCap {
 public:
  explicit LeasedCap(std::uint64_t cookie = 0) : cookie_(cookie) {}
  // The connection leads to this peer (core/peers/peer.h).
  void know_peer(std::uint64_t peer) { peer_ = peer; }
  // Returns the cap in force, 0 = none.
  std::uint32_t in_force_pkts(std::uint64_t now_ns) const;
  // A look at the connection, which renews what a law in this process says. A published law sees each, also those
  // between ticks: what it does not know of it would let through twice.
  void look(const KernelView& view, std::uint64_t now_ns);
  // Takes a record, which it completes by connection, cap in force and target; returns the cap that was decided, or,
  // until the daemon's answer comes, the one in force.
  std::uint32_t decide(reinet_flow_stats& record, std::uint32_t in_force_pkts);
  // What was decided before a pause is void; what is decided on the next sample is not.
  void make_void() { void_ = true; }
  // No cap from now on, and no place with the daemon.
  void end();
  // In a forked child: the place with the daemon is the parent's.
  void forget_place() { slot_ = Link::kNoSlot; }
  // Whether ticks are due, for the daemon to know.
  void set_busy(bool busy);

  bool grants_packets() const { return law_.grants_packets(); }
  std::uint64_t due_ns() const { return law_.due_ns(); }

 private:
  std::uint64_t lease_in_force() const;
  std::uint32_t ask_law(reinet_flow_stats& record);
  std::uint32_t ask_daemon(reinet_flow_stats& record);

  std::uint64_t cookie_ = 0, peer_ = 0;
  Neighbour neighbour_;
  Law law_;
  std::uint64_t lease_ = 0;  // of the law's
  bool void_ = false;        // after a pause, until a new decision
  int slot_ = Link::kNoSlot;
  std::uint64_t void_lease_ = 0;  // of the daemon's, that answers what was before a pause
};

}  // namespace reinet::alcc

#endif
