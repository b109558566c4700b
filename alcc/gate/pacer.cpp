// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/pacer.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "alcc/base/clock.hpp"
#include "alcc/base/futex.hpp"
#include "alcc/base/real.hpp"
#include "alcc/gate/process.hpp"

namespace reinet::alcc {

namespace {

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr int kMostTries = 1000;

// A thread's stack holds the thread_local variables of the program and its libraries, too, of which some have hundreds
// of kilobytes: the C library tells how much that is, to those who ask by this name (OpenJDK does).
Real<std::size_t (*)(const pthread_attr_t*)> least_stack_bytes{"__pthread_get_minstack"};

std::size_t stack_bytes(const pthread_attr_t& attributes) {
  const auto least = least_stack_bytes.get();
  return kStackBytes + (least ? least(&attributes) : 0);
}

// Tells whether only this thread is left beside the main one, which has ended: a zombie (Z) until all have. Where there
// is no /proc nobody can tell, and the process stays for as long as its gates are closed.
bool is_last_thread() {
  char text[1024] = "", state = 0;
  long threads = 0;
  const long file = syscall(SYS_openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC);  // stdio would use malloc
  if (file < 0) return false;
  const bool is_read = syscall(SYS_read, file, text, sizeof text - 1) > 0;
  syscall(SYS_close, file);
  const char* rest = is_read ? std::strrchr(text, ')') : nullptr;  // what is before it is a name, with anything in it
  constexpr auto kFields = ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld";
  return rest && std::sscanf(rest, kFields, &state, &threads) == 2 && state == 'Z' && threads == 2;
}

}  // namespace

void Pacer::push(Flow* flow, std::uint64_t due_ns) {
  bool first;
  {
    const std::lock_guard guard(lock_);
    if (!started_ && !paused_) {
      if (!process().wanted()) return;  // given up meanwhile: nothing of the gate may run any more
      lacks_thread_ = true;
    }
    first = waits_ && (due_.empty() || due_ns < due_.top().ns);
    flow->queued = if_memory_lasts([&] { return due_.push({due_ns, flow}), true; }).value_or(false);
    flows_ = due_.size();
  }
  if (first) tell();
}

void Pacer::keep() {
  {
    const std::lock_guard guard(lock_);
    lacks_thread_ = !started_ && !paused_;
  }
  attend();
  const std::lock_guard guard(lock_);
  kept_ = started_;
}

void Pacer::end_with_the_others() {
  {
    const std::lock_guard guard(lock_);
    ends_with_others_ = true;
  }
  tell();
}

void Pacer::pause(bool for_good) {
  pausing_.lock();
  {
    const std::lock_guard making(making_);
    const std::lock_guard guard(lock_);
    if (kept_ && !for_good) return;
    paused_ = true;
    if (!started_) return;
    started_ = false;
  }
  tell();
  int cancelled;  // setuid() and others that pause it are no cancellation points
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
  pthread_join(thread_, nullptr);
  // The C library is content when the thread's stack is free; to the kernel it is one for some microseconds more.
  for (int tries = 0; tries < kMostTries && syscall(SYS_tgkill, getpid(), thread_id_.load(), 0) == 0; ++tries)
    usleep(50);
  pthread_setcancelstate(cancelled, nullptr);
}

void Pacer::resume() {
  {
    const std::lock_guard guard(lock_);
    paused_ = false;
    lacks_thread_ = !started_ && !due_.empty();
  }
  attend();
  pausing_.unlock();
  if (!process().wanted()) process().open_all();  // nobody would do it later
}

void Pacer::renew() {
  new (&pausing_) std::mutex;
  new (&making_) Lock;
  paused_ = lacks_thread_ = false;
  due_ = {};
  flows_ = 0;
  started_ = kept_ = ends_with_others_ = waits_ = false;
}

void Pacer::make_thread() {
  if (!process().is_here()) return;  // a child of vfork() has none
  bool failed = false;
  int cancelled;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
  {
    const std::lock_guard making(making_);
    std::unique_lock guard(lock_);
    if (lacks_thread_.exchange(false) && !started_ && !paused_) {
      const bool wanted = started_ = process().wanted();
      guard.unlock();
      failed = !wanted || !start();
      guard.lock();
      if (failed) started_ = false;
    }
  }
  if (failed) {
    process().give_up("no thread can be made");
    process().open_all();
  }
  pthread_setcancelstate(cancelled, nullptr);
}

bool Pacer::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes(attributes));
  const auto run = [](void* pacer) -> void* {
    static_cast<Pacer*>(pacer)->run();
    return nullptr;
  };
  const int failed = pthread_create(&thread_, &attributes, run, this);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return !failed;
}

void Pacer::tell() {
  ++changes_;
  futex_wake_all(changes_);
}

void Pacer::wait(std::unique_lock<Lock>& guard, std::uint64_t due_ns) {
  const std::uint32_t seen = changes_;
  waits_ = true;
  guard.unlock();
  const timespec left = timespec_of(ns_until(due_ns));
  futex_wait(changes_, seen, due_ns ? &left : nullptr);
  guard.lock();
  waits_ = false;
}

void Pacer::run() {
  inside_gate = true;
  pthread_setname_np(pthread_self(), "reinet-alcc");
  thread_id_ = static_cast<pid_t>(syscall(SYS_gettid));
  std::unique_lock guard(lock_);
  while (!paused_) {
    if (ends_with_others_ && (due_.empty() || is_last_thread())) {  // who sends after it makes another one
      pthread_detach(pthread_self());
      started_ = false;
      return;
    }
    if (due_.empty()) {
      wait(guard, 0);
      continue;
    }
    const Due next = due_.top();
    if (next.ns > now_ns()) {
      wait(guard, next.ns);
      continue;
    }
    due_.pop();
    flows_ = due_.size();
    guard.unlock();
    {
      const std::lock_guard flow_guard(next.flow->lock);
      next.flow->queued = false;
      const std::uint64_t due_ns = next.flow->cookie ? next.flow->tick(now_ns()) : 0;
      if (due_ns) push(next.flow, due_ns);
      if (due_ns && !next.flow->queued) next.flow->open();
    }
    guard.lock();
  }
}

}  // namespace reinet::alcc
