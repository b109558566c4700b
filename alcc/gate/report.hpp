// SPDX-License-Identifier: Apache-2.0
//
// What a process has to tell when it ends, as one line of JSON. In shadow mode the last two are what it is for: the
// queueing delay that its flows had, and how much of it was due to packets beyond the cap that nobody enforced. That is
// an estimate: each packet beyond waits for as long as the flow's delivery rate takes for one.
#ifndef REINET_ALCC_REPORT_HPP
#define REINET_ALCC_REPORT_HPP

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "alcc/base/lock.hpp"
#include "core/flow_stats.h"

namespace reinet::alcc {

class Report {
 public:
  std::atomic<std::uint64_t> flows{0}, bytes{0}, closings{0}, openings{0};

  // Takes a record, the cap decided on it and the packets in flight or waiting in the kernel.
  void take(const reinet_flow_stats& record, std::uint32_t cap_pkts, std::uint32_t held_pkts);
  // A flow is not gated any more: counted, and said on standard error once for each reason.
  void exempted(const char* reason);
  void write(const char* path);
  void clear();

 private:
  void flush();  // of records

  Lock lock_;
  std::uint64_t records_ = 0, decided_ = 0, capped_ = 0, not_gated_ = 0;
  double delivered_bytes_ = 0, delay_byte_us_ = 0, saved_byte_us_ = 0;
  std::set<std::string> exemptions_;
  std::vector<reinet_flow_stats> unwritten_;
};

}  // namespace reinet::alcc

#endif
