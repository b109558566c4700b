// SPDX-License-Identifier: Apache-2.0
//
// The calls that wait until a socket may be written. While a gate is closed its socket is not writable:
//
//   epoll          the registration goes to the kernel without EPOLLOUT; when the gate opens the flow puts it
//                  back, which also makes a new edge, so that epoll_wait is left alone (alcc/gate/flow.cpp)
//   poll, select   the wait is cut into slices of the flow's tick, in which closed sockets are only looked at for
//                  reading; what opened is then asked of the kernel again. A full window closes the gate here, before
//                  anybody was refused: some programs (stunnel) sleep when what was writable takes nothing
//
// A registration with EPOLLONESHOT cannot be changed without being felt: a flow that has one as it sends runs uncapped.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <optional>
#include <vector>

#include "alcc/base/clock.hpp"
#include "alcc/base/real.hpp"
#include "alcc/gate/process.hpp"
#include "alcc/preload/forget.hpp"

using namespace reinet::alcc;

namespace {

REINET_REAL(epoll_ctl);
REINET_REAL(epoll_create);
REINET_REAL(epoll_create1);
REINET_REAL(poll);
REINET_REAL(ppoll);
REINET_REAL(select);
REINET_REAL(pselect);

constexpr short kPollWritable = POLLOUT | POLLWRNORM | POLLWRBAND;
// More than a process may ever have descriptors (fs.nr_open): such a count is an error's, which the kernel refuses.
constexpr nfds_t kMostPolled = nfds_t{1} << 31;

// The gate of a descriptor if it is closed, also where nobody was refused yet: what is writable takes a byte at least.
Flow* closed_gate(int fd) {
  Flow* flow = process().table.known_flow(fd);
  if (!flow || !process().is_here()) return nullptr;
  if (flow->armed.load(std::memory_order_relaxed)) return flow;
  const std::lock_guard guard(flow->lock);
  return flow->arm_if_full(fd, now_ns()) ? flow : nullptr;
}

// The least slice, in which all closed gates are looked at: no oftener than the pacer looks at all that it has.
std::uint64_t fair_slice_ns(std::uint64_t slice_ns) { return std::max(slice_ns, process().pacer.fair_ns()); }

// Looks for itself, which is sooner than the pacer's word and another slice.
bool any_opened(const std::vector<Flow*>& flows) {
  return std::ranges::any_of(flows, [](Flow* flow) {
    const std::lock_guard guard(flow->lock);
    flow->look(now_ns());
    return !flow->armed;
  });
}

std::uint64_t ns_of(const timespec& t) {
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}
bool is_sane(const timespec* t) { return !t || (t->tv_sec >= 0 && t->tv_nsec >= 0 && t->tv_nsec < 1'000'000'000); }

// A wait in slices is one wait to the program: a handler that runs between two of them would not end it. Signals come
// only in the slices, but for those that a thread's own faults raise.
class SignalsInSlices {
 public:
  explicit SignalsInSlices(const sigset_t* mask) {
    sigset_t held;
    sigfillset(&held);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&held, fault);
    pthread_sigmask(SIG_SETMASK, &held, &before_);
    of_slices_ = mask ? *mask : before_;
  }
  ~SignalsInSlices() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsInSlices(const SignalsInSlices&) = delete;
  SignalsInSlices& operator=(const SignalsInSlices&) = delete;
  const sigset_t* mask() const { return &of_slices_; }

 private:
  sigset_t before_, of_slices_;
};

// Waits in slices: wait(timeout) waits for all but closed gates and returns how many are ready, or -1; opened() tells
// whether one of them opened. Returns kOpened then, else the last result.
constexpr int kOpened = -2;

template <class Wait, class Opened>
int in_slices(std::uint64_t end_ns, std::uint64_t slice_ns, Wait&& wait, Opened&& opened) {
  while (true) {
    const std::uint64_t left_ns = ns_until(end_ns);
    const timespec slice = timespec_of(std::min(left_ns, slice_ns));
    const int result = wait(slice);
    if (result != 0) return result;
    if (opened()) return kOpened;
    if (left_ns <= slice_ns) return 0;
  }
}

int gated_poll(pollfd* fds, nfds_t count, std::uint64_t end_ns, const sigset_t* mask) {
  const SignalsInSlices signals(mask);
  std::vector<pollfd> watched;
  std::vector<Flow*> closed;
  while (true) {
    std::uint64_t slice_ns = kMostTickNs;
    watched.assign(fds, fds + count);
    closed.clear();
    for (pollfd& p : watched) {
      Flow* flow = (p.events & kPollWritable) && p.fd >= 0 ? closed_gate(p.fd) : nullptr;
      if (!flow) continue;
      p.events = static_cast<short>(p.events & ~kPollWritable);
      closed.push_back(flow);
      slice_ns = std::min(slice_ns, flow->tick_ns.load(std::memory_order_relaxed));
    }
    if (closed.empty()) {
      const timespec left = timespec_of(ns_until(end_ns));
      const Outside outside;
      return real_ppoll.get()(fds, count, end_ns == kUnlimited ? nullptr : &left, signals.mask());
    }
    const auto wait = [&](const timespec& slice) {
      const Outside outside;
      return real_ppoll.get()(watched.data(), count, &slice, signals.mask());
    };
    const int result = in_slices(end_ns, fair_slice_ns(slice_ns), wait, [&] { return any_opened(closed); });
    if (result == kOpened) continue;
    if (result >= 0)
      for (nfds_t i = 0; i < count; ++i) {
        fds[i].revents = watched[i].revents;
        // What has come to its end is writable, too; its gate opens at the next look.
        const int withheld = fds[i].events & ~watched[i].events;
        if (watched[i].revents & POLLHUP) fds[i].revents |= static_cast<short>(withheld & (POLLOUT | POLLWRNORM));
      }
    return result;
  }
}

bool any_closed(const pollfd* fds, nfds_t count) {
  if (count >= kMostPolled) return false;
  for (nfds_t i = 0; i < count; ++i)
    if ((fds[i].events & kPollWritable) && fds[i].fd >= 0 && closed_gate(fds[i].fd)) return true;
  return false;
}

// Programs may have larger sets than fd_set, which is an array of such words.
bool has(const fd_mask* set, int fd) { return set[fd / NFDBITS] >> (fd % NFDBITS) & 1; }

bool any_closed(int count, const fd_set* writable) {
  if (!writable) return false;
  // Beyond the descriptors that there are a set may end, whatever the program says.
  const int most = std::min(count, process().table.highest_fd() + 1);
  for (int fd = 0; fd < most; ++fd)
    if (process().table.known_flow(fd) && has(reinterpret_cast<const fd_mask*>(writable), fd) && closed_gate(fd))
      return true;
  return false;
}

// How many descriptors the kernel looks at where a program says more, as it may in a set of FD_SETSIZE: no more than
// its table has room for. 0 = unknown.
int looked_at(int count) {
  if (count <= FD_SETSIZE) return count;
  char text[1024] = "";
  const long file = syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  [[maybe_unused]] const long size = syscall(SYS_read, file, text, sizeof text - 1);
  syscall(SYS_close, file);
  const char* found = std::strstr(text, "\nFDSize:");
  return found ? std::min(count, std::atoi(found + 8)) : 0;
}

// Of a program's sets only what the kernel reads and writes: whole words up to count, which may be all there is.
class Sets {
 public:
  Sets(int count, const fd_set* read, const fd_set* write, const fd_set* except)
      : words_((static_cast<std::size_t>(count) + NFDBITS - 1) / NFDBITS), masks_(3 * words_) {
    const fd_set* const sets[] = {read, write, except};
    for (std::size_t i = 0; i < 3; ++i)
      if (sets[i]) std::memcpy(&masks_[i * words_], sets[i], words_ * sizeof(fd_mask));
  }
  void give(fd_set* read, fd_set* write, fd_set* except) const {
    fd_set* const sets[] = {read, write, except};
    for (std::size_t i = 0; i < 3; ++i)
      if (sets[i]) std::memcpy(sets[i], &masks_[i * words_], words_ * sizeof(fd_mask));
  }
  bool asks_writable(int fd) const { return has(&masks_[words_], fd); }
  void withhold(int fd) { masks_[words_ + static_cast<std::size_t>(fd / NFDBITS)] &= ~(fd_mask{1} << (fd % NFDBITS)); }

 private:
  std::size_t words_;
  std::vector<fd_mask> masks_;
};

// Tells whether there is a closed gate to wait at, for descriptors below what count becomes.
bool any_closed_of(int& count, const fd_set* writable) {
  if (!any_closed(count, writable)) return false;
  const int looked = looked_at(count);
  if (looked > 0) count = looked;
  return looked > 0;
}

// Tells whether a gate opens now that its connection has something to tell: one that has ended is writable, too.
bool any_opened_of_readable(const fd_set* read, const Sets& asked, const Sets& watched, int count) {
  for (int fd = 0; read && fd < count; ++fd) {
    if (asked.asks_writable(fd) == watched.asks_writable(fd) || !has(reinterpret_cast<const fd_mask*>(read), fd))
      continue;
    if (Flow* flow = process().table.known_flow(fd); flow && any_opened({flow})) return true;
  }
  return false;
}

int gated_select(int count, fd_set* read, fd_set* write, fd_set* except, std::uint64_t end_ns, const sigset_t* mask) {
  const SignalsInSlices signals(mask);
  const Sets asked(count, read, write, except);
  const auto wait = [&](const Sets& sets, const timespec* timeout) {
    sets.give(read, write, except);
    const Outside outside;
    return real_pselect.get()(count, read, write, except, timeout, signals.mask());
  };
  std::vector<Flow*> closed;
  Sets watched = asked;  // here, for no memory is to end once the program's sets have changed
  while (true) {
    std::uint64_t slice_ns = kMostTickNs;
    watched = asked;
    closed.clear();
    for (int fd = 0; fd < count; ++fd) {
      Flow* flow = asked.asks_writable(fd) ? closed_gate(fd) : nullptr;
      if (!flow) continue;
      watched.withhold(fd);
      closed.push_back(flow);
      slice_ns = std::min(slice_ns, flow->tick_ns.load(std::memory_order_relaxed));
    }
    if (closed.empty()) {
      const timespec left = timespec_of(ns_until(end_ns));
      return wait(asked, end_ns == kUnlimited ? nullptr : &left);
    }
    const int result = in_slices(
        end_ns, fair_slice_ns(slice_ns), [&](const timespec& slice) { return wait(watched, &slice); },
        [&] { return any_opened(closed); });
    if (result == kOpened || (result > 0 && any_opened_of_readable(read, asked, watched, count))) continue;
    if (result < 0)
      asked.give(read, write, except);  // as the kernel does: whoever was interrupted asks with them again
    return result;
  }
}

// Known from the start: copies of its descriptor that are made before anything is registered are the same epoll.
int fresh_epoll(int epfd) {
  fresh(epfd);
  if (epfd >= 0 && process().wanted()) in_table([=](Table& table) { table.epoll(epfd); });
  return epfd;
}

std::uint64_t end_of(const timespec* timeout) {
  if (!timeout || timeout->tv_sec > 1'000'000'000) return kUnlimited;
  return now_ns() + ns_of(*timeout);
}

// Of select's, which may have its seconds as microseconds.
std::uint64_t end_of(const timeval& timeout) {
  if (timeout.tv_sec > 1'000'000'000 || timeout.tv_usec > 1'000'000'000'000'000) return kUnlimited;
  return now_ns() + ns_of({timeout.tv_sec, timeout.tv_usec * 1000});
}

}  // namespace

REINET_HOOK int epoll_ctl(int epfd, int operation, int fd, epoll_event* event) noexcept {
  const Inside inside;
  if (operation == EPOLL_CTL_DEL) event = nullptr;  // wherever it points to, the kernel does not look there
  if (!inside || (!event && operation != EPOLL_CTL_DEL)) return real_epoll_ctl.get()(epfd, operation, fd, event);
  const int error = errno;
  Table& table = process().table;
  // Who does not ask whether it may be written is told nothing else at a closed gate; most servers ask so of a new one.
  const bool is_plain = event && !(event->events & kWritable) && !table.is_known(fd) && table.is_epoll(epfd);
  Flow* flow = is_plain ? nullptr : table.verified_flow(fd);
  errno = error;
  if (!flow || !process().is_here()) return real_epoll_ctl.get()(epfd, operation, fd, event);
  const std::lock_guard guard(flow->lock);
  return flow->control_epoll(epfd, operation, fd, event ? *event : epoll_event{});
}

REINET_HOOK int epoll_create(int size) noexcept { return fresh_epoll(real_epoll_create.get()(size)); }

REINET_HOOK int epoll_create1(int flags) noexcept { return fresh_epoll(real_epoll_create1.get()(flags)); }

REINET_HOOK int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  if (const Inside inside; inside && fds && any_closed(fds, count)) {
    const std::uint64_t end_ns =
        timeout_ms < 0 ? kUnlimited : now_ns() + static_cast<std::uint64_t>(timeout_ms) * 1'000'000;
    if (const auto ready = if_memory_lasts([=] { return gated_poll(fds, count, end_ns, nullptr); })) return *ready;
  }
  return real_poll.get()(fds, count, timeout_ms);
}

REINET_HOOK int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (const Inside inside; inside && fds && is_sane(timeout) && any_closed(fds, count))
    if (const auto ready = if_memory_lasts([=] { return gated_poll(fds, count, end_of(timeout), mask); }))
      return *ready;
  return real_ppoll.get()(fds, count, timeout, mask);
}

// What programs built with _FORTIFY_SOURCE call; a call that would overrun its array is left to the C library to stop.
REINET_HOOK int __poll_chk(pollfd* fds, nfds_t count, int timeout_ms, std::size_t size) {
  if (size / sizeof *fds < count) __builtin_trap();
  return poll(fds, count, timeout_ms);
}

REINET_HOOK int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                            std::size_t size) {
  if (size / sizeof *fds < count) __builtin_trap();
  return ppoll(fds, count, timeout, mask);
}

REINET_HOOK int select(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
  const bool sane = !timeout || (timeout->tv_sec >= 0 && timeout->tv_usec >= 0);
  if (const Inside inside; inside && sane && any_closed_of(count, write)) {
    const std::uint64_t end_ns = timeout ? end_of(*timeout) : kUnlimited;
    const auto result = if_memory_lasts([=] { return gated_select(count, read, write, except, end_ns, nullptr); });
    if (result && timeout) {  // Linux tells what is left
      const timespec left = timespec_of(ns_until(end_ns));
      *timeout = {left.tv_sec, left.tv_nsec / 1000};
    }
    if (result) return *result;
  }
  return real_select.get()(count, read, write, except, timeout);
}

REINET_HOOK int pselect(int count, fd_set* read, fd_set* write, fd_set* except, const timespec* timeout,
                        const sigset_t* mask) {
  if (const Inside inside; inside && is_sane(timeout) && any_closed_of(count, write))
    if (const auto ready =
            if_memory_lasts([=] { return gated_select(count, read, write, except, end_of(timeout), mask); }))
      return *ready;
  return real_pselect.get()(count, read, write, except, timeout, mask);
}
