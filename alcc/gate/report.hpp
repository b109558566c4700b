// SPDX-License-Identifier: Apache-2.0
//
// What a process has to tell. In shadow mode the delays are what it is for: the queueing delay that its flows had, and
// how much of it was due to packets beyond the cap that nobody enforced. That is an estimate: each packet beyond waits
// for as long as the flow's delivery rate takes for one.
#ifndef REINET_ALCC_REPORT_HPP
#define REINET_ALCC_REPORT_HPP

#include <atomic>
#include <cstdint>
#include <set>
#include <string>

#include "alcc/base/lock.hpp"
#include "alcc/gate/sums.hpp"
#include "core/flow_stats.h"

namespace reinet::alcc {

class Report {
 public:
  // From now on the sums are in the memory that this path leads to, where it can be had.
  void share(const char* path);
  Sums& sums();
  // Takes a record, the cap decided on it and the packets in flight or waiting in the kernel. Records are appended to
  // the file of that path as they come, unless it is empty.
  void take(const reinet_flow_stats& record, std::uint32_t cap_pkts, std::uint32_t held_pkts, const char* records_path);
  // Whether anybody wants to know.
  bool is_shared() const { return shared_ != nullptr; }
  // A flow is not gated any more: counted, and said on standard error once for each reason.
  void exempted(const char* reason);
  // In a forked child, which has told nothing yet.
  void renew();

 private:
  AllSums* shared_ = nullptr;
  Sums own_;  // where nothing is shared
  std::atomic<Sums*> place_{nullptr};
  Lock lock_;  // guards the reasons that were said
  std::set<std::string> exemptions_;
};

}  // namespace reinet::alcc

#endif
