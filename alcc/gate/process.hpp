// SPDX-License-Identifier: Apache-2.0
//
// What a process has one of. It is made at the first need and never ends, so that calls before and after main() find
// it.
#ifndef REINET_ALCC_PROCESS_HPP
#define REINET_ALCC_PROCESS_HPP

#include <sys/types.h>

#include <atomic>
#include <new>
#include <optional>

#include "alcc/base/lock.hpp"
#include "alcc/gate/pacer.hpp"
#include "alcc/gate/report.hpp"
#include "alcc/gate/shared_peers.hpp"
#include "alcc/gate/table.hpp"
#include "alcc/laws/settings.hpp"
#include "alcc/link/link.hpp"

namespace reinet::alcc {

// This thread is within the gate. What a signal's handler writes meanwhile passes by: it may have interrupted whoever
// holds the locks it would need.
extern thread_local bool inside_gate;

struct Process {
  Settings settings;
  bool asked = false;  // somebody wants this process gated or watched
  std::atomic<bool> given_up{false};
  std::atomic<bool> left{false};          // see leave()
  std::atomic<bool> lacks_memory{false};  // see run_out_of_memory()
  std::atomic<bool> has_io_uring{false};  // by what may be seen, alcc/preload/by_number.cpp
  pid_t pid = 0;
  Lock forking;
  Table table;
  Pacer pacer;
  Report report;
  Link link;
  std::atomic<bool>* alive = nullptr;  // in memory that every new process gets empty
  SharedPeers* peers = nullptr;        // in memory that all processes made by fork() share

  bool wanted() const { return asked && !given_up.load(std::memory_order_relaxed) && !is_copy(); }
  // This process has the memory of another one that fork() was not told of in time, see before_fork() in process.cpp.
  bool is_copy() const { return alive && !alive->load(std::memory_order_relaxed); }
  // From now on this process is gated or watched so.
  void ask(const Settings& what);
  // Opens all gates for good and says why.
  void give_up(const char* why);
  // The same where memory has ended, also in children: what was kept for it (alcc/preload/memory.cpp) is there only
  // once. Locks may be held here; the pacer opens what is closed.
  void run_out_of_memory();
  // The same, in time before a call after which nothing of the gate may run in this process.
  void leave(const char* why);
  // Wakes and tells all that wait at a gate; the caller is inside the gate, with no lock.
  void open_all();
  // Whether this process is the one that the rest is about. A vfork()ed child shares our memory and must not change
  // what it says; one that clone() made past fork() has a copy with other threads' locks in it.
  bool is_here() const;
  // What fork() has done around it, around a call of the kernel that does the same.
  void begin_fork();
  void end_fork(bool in_child);
};

Process& process();
// Whether there is one yet, without making it, and whether its making has begun.
bool is_made();
bool is_begun();

// Entered by a call of the application's. Where it does not hold, the call must go straight to the kernel.
class Inside {
 public:
  Inside() : entered_(!inside_gate && process().wanted()) {
    if (entered_) inside_gate = true;
  }
  ~Inside() {
    if (!entered_) return;
    process().pacer.attend();
    inside_gate = false;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  bool entered_;
};

// What the gate makes grows with the connections, and there may be no memory for it. Nothing is returned then, and the
// process is given up.
template <class Make>
auto if_memory_lasts(Make&& make) -> std::optional<decltype(make())> {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    process().run_out_of_memory();
    return {};
  }
}

// Leaves the gate again for a wait with no lock and nothing begun, as poll's: what a signal's handler writes meanwhile
// is gated, and so is the thread after a handler that jumps out of it.
class Outside {
 public:
  Outside() {
    process().pacer.attend();
    inside_gate = false;
  }
  ~Outside() { inside_gate = true; }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;
};

}  // namespace reinet::alcc

#endif
