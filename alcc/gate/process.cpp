// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/process.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "alcc/base/say.hpp"

namespace reinet::alcc {

[[gnu::tls_model("initial-exec")]] thread_local bool inside_gate = false;
[[gnu::tls_model("initial-exec")]] thread_local unsigned locks_held = 0;

namespace {

constinit std::atomic<bool> is_process_begun{false}, is_process_made{false};
std::size_t locked_chunks = 0;                                        // by the thread that forks
[[gnu::tls_model("initial-exec")]] thread_local bool locked = false;  // this thread has them
// Forks of a handler's that interrupted this thread in the gate, one within the other.
[[gnu::tls_model("initial-exec")]] thread_local unsigned interrupting_forks = 0;

// Called where the main thread ends and the process does not: by pthread_exit, thrd_exit or a cancellation.
void on_end_of_main_thread(void*) {
  const Inside inside;
  if (inside && process().is_here()) process().pacer.end_with_the_others();
}

// The C library calls it for a thread that has a value under this key; a process that exits has no such calls.
void await_end_of_main_thread() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    pthread_key_create(&made, on_end_of_main_thread);
    return made;
  }();
  if (gettid() == getpid()) pthread_setspecific(key, &is_process_made);  // any value
}

void before_fork() {
  Process& p = process();
  if (!p.is_here()) return;
  if (locks_held > 0) {  // a wait could be for this thread; the child is a copy, in which nothing is gated
    ++interrupting_forks;
    return;
  }
  p.forking.lock();
  locked = true;
  locked_chunks = p.table.chunks();
  // Nothing stays withheld: the child has no pacer, and shares epolls with its parent.
  p.table.each_flow(locked_chunks, [](Flow& flow) {
    flow.lock.lock();
    flow.open();
  });
  p.pacer.lock_all();
  p.table.lock_all();
  if (lock_of_memory) lock_of_memory->lock();
}

// Whether the fork that comes to its end was such a one, around which no locks were taken.
bool ends_interrupting_fork() {
  if (interrupting_forks == 0) return false;
  --interrupting_forks;
  return true;
}

// On both sides the thread that forked is the one that took the locks.
void give_locks_back() {
  Process& p = process();
  if (ends_interrupting_fork() || !locked) return;
  locked = false;
  if (lock_of_memory) lock_of_memory->unlock();
  p.table.unlock_all();
  p.pacer.unlock_all();
  p.table.each_flow(locked_chunks, [](Flow& flow) { flow.lock.unlock(); });
  p.forking.unlock();
}

void after_fork_in_child() {
  Process& p = process();
  if (ends_interrupting_fork() || !locked) return;
  p.pid = getpid();
  if (p.alive) *p.alive = true;
  give_locks_back();
  p.pacer.renew();
  p.report.renew();
  p.given_up = p.left || p.lacks_memory;  // what else was no more possible in the parent may be here
  p.link.renew();
  p.table.each_flow(p.table.chunks(), [](Flow& flow) { flow.after_fork(); });
  await_end_of_main_thread();
}

std::atomic<bool>* make_alive() {
  void* page = mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  madvise(page, sizeof(std::atomic<bool>), MADV_WIPEONFORK);
  return new (page) std::atomic<bool>(true);
}

SharedPeers* make_peers() {
  void* pages = mmap(nullptr, sizeof(SharedPeers), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? new SharedPeers : new (pages) SharedPeers;
}

Process* make() {
  remember_standard_error();
  auto* p = new Process;
  p->pid = getpid();
  p->alive = make_alive();
  p->peers = make_peers();
  const char* text = std::getenv(kEnvironment);
  if (!text) return p;
  std::optional<Settings> settings;
  try {
    settings = parse_settings(text);
  } catch (const std::bad_alloc&) {
    say("there is no memory for what REINET_ALCC says: nothing is gated");  // a model is long
    return p;
  }
  if (!settings) {
    say("REINET_ALCC=%.200s makes no sense: nothing is gated", text);  // a model is long
    return p;
  }
  p->ask(*settings);
  return p;
}

[[gnu::constructor]] void begin() {
  process();
  await_end_of_main_thread();
}

}  // namespace

Process& process() {
  static Process* const only = [] {
    is_process_begun.store(true, std::memory_order_release);
    Process* made = make();
    is_process_made.store(true, std::memory_order_release);
    return made;
  }();
  return *only;
}

bool is_copy() { return process().is_copy(); }

bool is_begun() { return is_process_begun.load(std::memory_order_acquire); }

bool is_made() { return is_process_made.load(std::memory_order_acquire); }

void Process::ask(const Settings& what) {
  settings = what;
  if (!asked) pthread_atfork(before_fork, give_locks_back, after_fork_in_child);
  if (!settings.report.empty()) report.share(settings.report.c_str());
  asked = true;
}

void Process::give_up(const char* why) {
  if (given_up.exchange(true)) return;
  say("%s: nothing of process %d is gated", why, static_cast<int>(getpid()));
}

void Process::run_out_of_memory() {
  lacks_memory = true;
  give_up("there is no memory left");
}

void Process::leave(const char* why) {
  const Inside inside;
  if (!inside || !is_here()) return;
  pacer.pause(true);  // also until another thread that does the same has done it
  if (!left.exchange(true)) {
    give_up(why);
    open_all();
  }
  pacer.resume();
}

void Process::open_all() {
  table.each_flow(table.chunks(), [](Flow& flow) {
    const std::lock_guard guard(flow.lock);
    if (flow.cookie) flow.open();
  });
}

bool Process::is_here() const { return !is_copy() && pid == getpid(); }

void Process::begin_fork() {
  pacer.pause(true);
  before_fork();
}

void Process::end_fork(bool in_child) {
  if (in_child) {
    after_fork_in_child();
    return;
  }
  give_locks_back();
  pacer.resume();
}

}  // namespace reinet::alcc
