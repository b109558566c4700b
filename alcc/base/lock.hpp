// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_ALCC_LOCK_HPP
#define REINET_ALCC_LOCK_HPP

#include <mutex>
#include <new>

namespace reinet::alcc {

// How many of the gate's locks this thread has, or waits for. A signal's handler that interrupted it must not wait for
// any of them: it may be the one that it waits for.
extern thread_local unsigned locks_held;

// Whether this process was made by a fork() at which other threads, which it has not got, may have had locks.
bool is_copy();

// A mutex of the gate's, counted.
class Lock {
 public:
  void lock() {
    ++locks_held;
    if (mutex_.try_lock()) return;
    if (is_copy()) new (&mutex_) std::mutex;  // the owner is not in this process
    mutex_.lock();
  }
  bool try_lock() {
    ++locks_held;
    if (mutex_.try_lock()) return true;
    --locks_held;
    return false;
  }
  void unlock() {
    mutex_.unlock();
    --locks_held;
  }

 private:
  std::mutex mutex_;
};

// Of what allocates for the gate, to be taken last around fork; null where the C library does.
inline Lock* lock_of_memory = nullptr;

}  // namespace reinet::alcc

#endif
