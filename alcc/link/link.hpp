// SPDX-License-Identifier: Apache-2.0
//
// The way to the daemon, where that decides: records go into shared memory (memory.hpp), an eventfd says that there are
// some, caps come back as leases. A SEQPACKET socket hands both descriptors over and tells each end when the other is
// gone. Whatever fails, flows stay uncapped, and the daemon is looked for again.
//
// The program may close what it does not know, and then use the number again: nothing is written into a descriptor that
// was not looked at just before.
#ifndef REINET_ALCC_LINK_HPP
#define REINET_ALCC_LINK_HPP

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "alcc/base/lock.hpp"
#include "alcc/link/memory.hpp"
#include "core/period.h"

namespace reinet::alcc {

class Link {
 public:
  static constexpr int kNoSlot = -1;

  // Of the pacer's thread: looks for the daemon at path, or whether it is still there; seldom more than a comparison.
  void look(const std::string& path, std::uint64_t now_ns);
  // Returns a slot for a flow, kNoSlot where there is no daemon or no room.
  int take_slot();
  // The flow ended or is not gated any more.
  void give_slot(int slot, std::uint64_t cookie);
  // The record's slot is the flow's. What the daemon has not taken in time is lost.
  void push(const reinet_flow_stats& record);
  // Returns the lease of a flow's cap, 0 = none, and fills the target that the daemon asks for.
  std::uint64_t lease(int slot, std::uint64_t cookie, std::uint32_t& target_us) const;
  void set_busy(int slot, bool busy);
  // Returns the period that the daemon's model wants, otherwise the one given.
  reinet_period_config period(const reinet_period_config& otherwise) const;
  // In a forked child, whose memory it is not.
  void renew();

 private:
  bool prepare();
  bool connect(const std::string& path);
  bool has_memory_fd() const;
  bool is_connected() const;
  void disconnect();

  std::atomic<LinkMemory*> memory_{nullptr};  // never unmapped but in a child
  Lock lock_;                                 // guards slots and writing records
  std::vector<int> free_slots_;
  int memory_fd_ = -1, event_fd_ = -1, socket_ = -1;
  std::uint64_t memory_inode_ = 0, memory_device_ = 0, socket_cookie_ = 0;
  std::uint64_t looked_ns_ = 0;
  std::atomic<bool> connected_{false};
};

}  // namespace reinet::alcc

#endif
