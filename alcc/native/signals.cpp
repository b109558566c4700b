// SPDX-License-Identifier: Apache-2.0
// Who sent a signal, for cli/run.py: Python's handlers are not told. Its sigwaitinfo() would say it, but takes only
// what every thread blocks, and NumPy's do not.
#include "alcc/native/parts.hpp"

#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace nb = nanobind;
using namespace nb::literals;

namespace reinet::alcc {

namespace {

struct Watched {
  std::atomic<void (*)(int)> handler{nullptr};  // Python's own
  std::atomic<bool> sent{false};                // by a process
};
static_assert(std::atomic<void (*)(int)>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);
constinit std::array<Watched, NSIG> watched;

void take(int number, siginfo_t* info, void*) {
  Watched& own = watched[static_cast<std::size_t>(number)];
  if (info->si_code != SI_KERNEL) own.sent = true;  // SI_KERNEL: a terminal's key
  own.handler.load()(number);
}

Watched& of(int number) {
  if (number < 1 || number >= NSIG) throw std::invalid_argument("no number of a signal");
  return watched[static_cast<std::size_t>(number)];
}

// Stands before the handler that Python has set, until it sets another one.
void watch_signal(int number) {
  Watched& own = of(number);
  struct sigaction action{};
  if (sigaction(number, nullptr, &action) != 0) throw std::system_error(errno, std::generic_category(), "sigaction");
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN || action.sa_flags & SA_SIGINFO)
    throw std::invalid_argument("the signal has no handler of Python's");
  own.handler = action.sa_handler;
  own.sent = false;
  action.sa_flags |= SA_SIGINFO;
  action.sa_sigaction = take;
  sigaction(number, &action, nullptr);
}

}  // namespace

void bind_signals(nb::module_& m) {
  m.def("watch_signal", &watch_signal, "number"_a);
  m.def("was_sent", [](int number) { return of(number).sent.exchange(false); }, "number"_a);
}

}  // namespace reinet::alcc
