// SPDX-License-Identifier: Apache-2.0
//
// The one thread of a process that looks at connections: at those with data outstanding, each when its look is due.
// With none it sleeps, without any timer. It is made when the first connection needs it, with all signals blocked.
#ifndef REINET_ALCC_PACER_HPP
#define REINET_ALCC_PACER_HPP

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <queue>
#include <vector>

#include "alcc/base/lock.hpp"
#include "alcc/gate/flow.hpp"

namespace reinet::alcc {

class Pacer {
 public:
  // The caller holds the flow's lock, and the flow is not queued yet, nor after it where the process is given up.
  void push(Flow* flow, std::uint64_t due_ns);
  // Makes the thread where something is due and there is none; the caller holds no lock. Memory is asked for, and of an
  // allocator with handlers around fork() (jemalloc) a thread may have all that waits for our locks.
  void attend() {
    if (lacks_thread_.load(std::memory_order_relaxed)) make_thread();
  }
  // The least time between two looks at a flow at which all of them together stay within the thread's share of a core.
  std::uint64_t fair_ns() const { return flows_.load(std::memory_order_relaxed) * kLookShareNs; }
  // Between these two there is no thread, and gates stay as they are. A process that has given up gets none after it.
  void pause(bool for_good = false);
  void resume();
  // Makes the thread now, and it stays through a pause that is not for good: soon none can be made any more.
  void keep();
  // The main thread ends, perhaps before others: the process is to end with the last of those, which ours is not.
  void end_with_the_others();
  void lock_all() { lock_.lock(); }
  void unlock_all() { lock_.unlock(); }
  // In a forked child, whose lock is free again: no thread, nothing due.
  void renew();

 private:
  struct Due {
    std::uint64_t ns;
    Flow* flow;
    bool operator<(const Due& other) const { return ns > other.ns; }  // the earliest first
  };

  void make_thread();
  bool start();
  void run();
  void tell();
  // Until told of something, or until then (0 = for good).
  void wait(std::unique_lock<Lock>& guard, std::uint64_t due_ns);

  // A look costs some 4 us on the machine of docs/alcc-measured.md, a tenth of this.
  static constexpr std::uint64_t kLookShareNs = 40'000;

  std::atomic<std::uint64_t> flows_{0};  // that are queued
  Lock lock_;
  std::atomic<std::uint32_t> changes_{0};  // moves when there is something to tell the thread
  std::priority_queue<Due> due_;
  bool started_ = false, paused_ = false;
  std::atomic<bool> lacks_thread_{false};
  Lock making_;  // before lock_; nobody takes it around fork()
  bool kept_ = false, ends_with_others_ = false;
  bool waits_ = false;  // the thread, to be told
  pthread_t thread_{};
  std::atomic<pid_t> thread_id_{0};
  std::mutex pausing_;  // held between pause() and resume(), where forks are as elsewhere
};

}  // namespace reinet::alcc

#endif
