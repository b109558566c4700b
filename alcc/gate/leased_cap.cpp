// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/leased_cap.hpp"

#include "alcc/gate/process.hpp"
#include "kshim/cap.h"

namespace reinet::alcc {

std::uint32_t LeasedCap::in_force_pkts(std::uint64_t now_ns) const {
  const Settings& settings = process().settings;
  if (settings.always && settings.law == Settings::Law::fixed) return settings.fixed_pkts;
  return void_ ? 0 : reinet_lease_cap_pkts(lease_in_force(), now_ns);
}

// The daemon's is read at each use, so that it lapses whatever the pacer does.
std::uint64_t LeasedCap::lease_in_force() const {
  if (process().settings.law != Settings::Law::daemon) return lease_;
  std::uint32_t target_us = 0;
  const std::uint64_t lease = process().link.lease(slot_, cookie_, target_us);
  return lease == void_lease_ ? 0 : lease;
}

void LeasedCap::look(const KernelView& view, std::uint64_t now_ns) {
  const auto look = [&] {
    law_.look(view, now_ns, process().settings, cookie_);
    return law_.cap_pkts();
  };
  const std::uint32_t cap_pkts = if_memory_lasts(look).value_or(0);
  lease_ = cap_pkts ? reinet_lease(now_ns + kLeaseNs, cap_pkts) : 0;
}

std::uint32_t LeasedCap::decide(reinet_flow_stats& record, std::uint32_t in_force_pkts) {
  record.cookie = cookie_;
  record.slot = 0;
  record.peer = process().settings.shared_uplink ? REINET_PEER_EVERYBODY : peer_;
  record.cap_pkts = in_force_pkts;
  if (process().settings.law == Settings::Law::daemon) return ask_daemon(record);
  return if_memory_lasts([&] { return ask_law(record); }).value_or(0);
}

std::uint32_t LeasedCap::ask_law(reinet_flow_stats& record) {
  const Settings& settings = process().settings;
  process().peers->annotate(neighbour_, record);
  law_.write_target(record, settings);
  if (has_sample(record)) void_ = false;
  return law_.decide(record, settings);
}

std::uint32_t LeasedCap::ask_daemon(reinet_flow_stats& record) {
  Link& link = process().link;
  if (slot_ == Link::kNoSlot) slot_ = link.take_slot();
  if (slot_ == Link::kNoSlot) return 0;
  const std::uint64_t lease = link.lease(slot_, cookie_, record.target_us);
  record.slot = static_cast<std::uint32_t>(slot_);
  link.set_busy(slot_, true);
  link.push(record);
  if (void_ && has_sample(record)) {  // as the kernel shim does: void until another one is written (kshim/slot.h)
    void_lease_ = lease;
    void_ = false;
  }
  return record.cap_pkts;
}

void LeasedCap::end() {
  lease_ = 0;
  process().link.give_slot(slot_, cookie_);
  slot_ = Link::kNoSlot;
}

void LeasedCap::set_busy(bool busy) { process().link.set_busy(slot_, busy); }

}  // namespace reinet::alcc
