// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/registrations.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include "alcc/gate/process.hpp"

namespace reinet::alcc {

void Registrations::tell(const Registration& r, std::uint32_t events) {
  const int epfd = process().table.fd_of(r.epoll, r.generation);
  if (epfd < 0) return;
  epoll_event event{events, r.data};
  if (!(events & EPOLLEXCLUSIVE)) {
    syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_MOD, r.fd, &event);
    return;
  }
  // The kernel changes no such registration; made anew it tells at once what is ready, as a changed one does.
  if (syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, r.fd, &event) == 0)
    syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, r.fd, &event);
}

bool Registrations::has_one_that_is_told_once() const {
  return std::ranges::any_of(
      all_, [](const Registration& r) { return r.epoll->generation == r.generation && is_told_once(r.wanted); });
}

void Registrations::withhold() {
  for (Registration& r : all_) {
    if (r.withheld || !(r.wanted & kWritable) || (r.wanted & EPOLLET)) continue;
    r.withheld = true;
    tell(r, r.wanted & ~kWritable);
  }
}

void Registrations::give_back() {
  for (Registration& r : all_) {
    if (!(r.wanted & kWritable)) continue;
    r.withheld = false;
    tell(r, r.wanted);
  }
}

int Registrations::control(int epfd, int operation, int fd, const epoll_event& asked, bool withheld) {
  Epoll* epoll = process().table.epoll(epfd);
  const std::uint32_t generation = epoll->generation;
  withheld = withheld && (asked.events & kWritable) && operation != EPOLL_CTL_DEL;
  epoll_event told = asked;
  if (withheld) told.events &= ~kWritable;
  if (syscall(SYS_epoll_ctl, epfd, operation, fd, &told) != 0) return -1;
  const auto is_it = [=](const Registration& r) {
    return r.epoll == epoll && r.generation == generation && r.fd == fd;
  };
  if (operation == EPOLL_CTL_DEL) {
    std::erase_if(all_, is_it);
    return 0;
  }
  const Registration made{epoll, generation, fd, asked.events, asked.data, withheld};
  if (const auto known = std::ranges::find_if(all_, is_it); known != all_.end()) {
    *known = made;
    return 0;
  }
  std::erase_if(all_, [](const Registration& r) { return r.epoll->generation != r.generation; });
  all_.push_back(made);
  return 0;
}

}  // namespace reinet::alcc
