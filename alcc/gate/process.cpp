// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>

#include "alcc/gate/say.hpp"

namespace reinet::alcc {

[[gnu::tls_model("initial-exec")]] thread_local bool inside_gate = false;

namespace {

std::size_t locked_chunks = 0;  // by the thread that forks

void before_fork() {
  Process& p = process();
  p.forking.lock();
  locked_chunks = p.table.chunks();
  // Nothing stays withheld: the child has no pacer, and shares epolls with its parent.
  p.table.each_flow(locked_chunks, [](Flow& flow) {
    flow.lock.lock();
    flow.open();
  });
  p.pacer.lock_all();
  p.table.lock_all();
}

// On both sides the thread that forked is the one that took the locks.
void give_locks_back() {
  Process& p = process();
  p.table.unlock_all();
  p.pacer.unlock_all();
  p.table.each_flow(locked_chunks, [](Flow& flow) { flow.lock.unlock(); });
  p.forking.unlock();
}

void after_fork_in_child() {
  Process& p = process();
  p.pid = getpid();
  give_locks_back();
  p.pacer.renew();
  p.report.clear();
  p.link.renew();
  p.table.each_flow(p.table.chunks(), [](Flow& flow) { flow.after_fork(); });
}

Process* make() {
  auto* p = new Process;
  p->pid = getpid();
  const char* text = std::getenv(kEnvironment);
  if (!text) return p;
  const auto settings = parse_settings(text);
  if (!settings) {
    say("REINET_ALCC=%s makes no sense: nothing is gated", text);
    return p;
  }
  p->ask(*settings);
  return p;
}

}  // namespace

Process& process() {
  static Process* const only = make();
  return *only;
}

void Process::ask(const Settings& what) {
  settings = what;
  if (!asked) pthread_atfork(before_fork, give_locks_back, after_fork_in_child);
  asked = true;
}

void Process::give_up(const char* why) {
  if (given_up.exchange(true)) return;
  say("%s: nothing of process %d is gated", why, static_cast<int>(getpid()));
}

namespace {

[[gnu::constructor]] void begin() { process(); }

[[gnu::destructor]] void end() {
  Process& p = process();
  if (p.asked && p.pid == getpid()) {
    inside_gate = true;
    p.report.write(p.settings.report.c_str());
    inside_gate = false;
  }
}

}  // namespace

}  // namespace reinet::alcc
