// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "alcc/base/clock.hpp"
#include "alcc/gate/passage.hpp"
#include "alcc/reinet_alcc.h"

using namespace reinet::alcc;

#define REINET_EXPORT extern "C" [[gnu::visibility("default")]]

REINET_EXPORT int reinet_alcc_start(const char* settings) {
  const auto parsed = settings ? parse_settings(settings) : std::nullopt;
  if (!parsed) {
    errno = EINVAL;
    return -1;
  }
  process().ask(*parsed);
  return 0;
}

REINET_EXPORT int reinet_alcc_accept(int fd, sockaddr* address, socklen_t* size) {
  const int accepted = accept(fd, address, size);
  if (accepted >= 0 && process().wanted()) process().table.close(accepted);  // whatever it was before
  return accepted;
}

REINET_EXPORT int reinet_alcc_connect(int fd, const sockaddr* address, socklen_t size) {
  return connect(fd, address, size);
}

REINET_EXPORT void reinet_alcc_forget(int fd) {
  if (const Inside inside; inside && process().is_here()) process().table.close(fd);
}

REINET_EXPORT int reinet_alcc_close(int fd) {
  reinet_alcc_forget(fd);
  return close(fd);
}

REINET_EXPORT ssize_t reinet_alcc_send(int fd, const void* data, size_t size, int flags) {
  if (flags & MSG_OOB) return send(fd, data, size, flags);
  return through_gate(fd, size, flags & MSG_DONTWAIT, [=](std::size_t offset, std::size_t bytes, bool later) {
    return send(fd, static_cast<const char*>(data) + offset, bytes, flags_of(flags, later));
  });
}

REINET_EXPORT ssize_t reinet_alcc_sendmsg(int fd, const struct msghdr* message, int flags) {
  return message_through_gate(fd, message, flags, sendmsg);
}

REINET_EXPORT int reinet_alcc_epoll_ctl(int epfd, int operation, int fd, struct epoll_event* event) {
  const Inside inside;
  if (operation == EPOLL_CTL_DEL) event = nullptr;  // wherever it points to, the kernel does not look there
  Flow* flow = inside ? process().table.flow(fd) : nullptr;
  if (!flow || !process().is_here() || (!event && operation != EPOLL_CTL_DEL))
    return epoll_ctl(epfd, operation, fd, event);
  const std::lock_guard guard(flow->lock);
  return flow->control_epoll(epfd, operation, fd, event ? *event : epoll_event{});
}

REINET_EXPORT int reinet_alcc_wait(int fd, int timeout_ms) {
  const std::uint64_t end_ns =
      timeout_ms < 0 ? kUnlimited : now_ns() + static_cast<std::uint64_t>(timeout_ms) * 1'000'000;
  while (true) {
    const Flow* flow = process().table.known_flow(fd);
    const std::uint64_t left_ns = ns_until(end_ns);
    const bool closed = flow && process().is_here() && flow->armed.load();
    const std::uint64_t slice_ns = closed ? std::min(left_ns, flow->tick_ns.load()) : left_ns;
    const timespec slice = timespec_of(slice_ns);
    pollfd waited{fd, static_cast<short>(closed ? 0 : POLLOUT), 0};
    const int result = ppoll(&waited, 1, !closed && end_ns == kUnlimited ? nullptr : &slice, nullptr);
    if (result != 0) return result;
    if (left_ns <= slice_ns) return 0;
  }
}
