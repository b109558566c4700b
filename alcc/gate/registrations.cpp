// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/registrations.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string_view>

#include "alcc/gate/process.hpp"

namespace reinet::alcc {

namespace {

// Files of /proc are read past our own hooks, and past malloc.
long open_at(long folder, const char* path, int flags = 0) {
  return syscall(SYS_openat, folder, path, O_RDONLY | O_CLOEXEC | flags);
}

bool is_epoll(long folder, const char* name) {
  constexpr std::string_view kEpoll = "anon_inode:[eventpoll]";
  char link[kEpoll.size() + 1];
  const long size = syscall(SYS_readlinkat, folder, name, link, sizeof link);
  return size > 0 && std::string_view(link, static_cast<std::size_t>(size)) == kEpoll;
}

// Of a line of an epoll's fdinfo, "tfd: 3 events: 1c data: 0 pos:0 ino:6bba70 sdev:9". The number alone may be another
// file's by now. A registration with EPOLLONESHOT that has told has no other events until it is made anew.
bool tells_of(const char* line, const struct stat& socket) {
  unsigned events = 0, device = 0;
  unsigned long inode = 0;
  const int found =
      std::sscanf(line, "tfd: %*d events: %x data: %*x pos:%*d ino:%lx sdev:%x", &events, &inode, &device);
  return found == 3 && (events & (kWritable | EPOLLONESHOT)) && inode == socket.st_ino &&
         device == (major(socket.st_dev) << 20 | minor(socket.st_dev));  // as the kernel has it in itself
}

bool has_line_of(long info, const struct stat& socket) {
  char text[1024];
  std::size_t kept = 0;  // of a line whose end is still to come
  for (long size; (size = syscall(SYS_read, info, text + kept, sizeof text - 1 - kept)) > 0;) {
    text[kept + static_cast<std::size_t>(size)] = 0;
    char* line = text;
    for (char* end; (end = std::strchr(line, '\n')); line = end + 1)
      if (tells_of(line, socket)) return true;
    kept = std::strlen(line);
    std::memmove(text, line, kept);
  }
  return false;
}

std::optional<bool> is_in_an_epoll_of(long folder, const struct stat& socket) {
  alignas(dirent64) char entries[1024];
  long size;
  while ((size = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
    for (const char* at = entries; at < entries + size; at += reinterpret_cast<const dirent64*>(at)->d_reclen) {
      const char* name = reinterpret_cast<const dirent64*>(at)->d_name;
      if (!is_epoll(folder, name)) continue;
      char path[sizeof "../fdinfo/" + sizeof(dirent64::d_name)];
      std::snprintf(path, sizeof path, "../fdinfo/%s", name);
      const long info = open_at(folder, path);
      if (info < 0) return {};
      const bool found = has_line_of(info, socket);
      syscall(SYS_close, info);
      if (found) return true;
    }
  return size < 0 ? std::nullopt : std::optional(false);
}

}  // namespace

std::optional<bool> is_in_an_epoll(int fd) {
  struct stat socket{};
  const long folder = fstat(fd, &socket) == 0 ? open_at(AT_FDCWD, "/proc/thread-self/fd", O_DIRECTORY) : -1;
  if (folder < 0) return {};
  const std::optional<bool> found = is_in_an_epoll_of(folder, socket);
  syscall(SYS_close, folder);
  return found;
}

void make_edge(int fd) {
  pollfd asked{fd, POLLOUT, 0};
  const timespec at_once{};
  // A kernel that has no room now makes an edge when it has, for it was asked. Where it has, it makes one whenever this
  // bound is set, to whatever value.
  if (syscall(SYS_ppoll, &asked, 1, &at_once, nullptr, 0) != 1) return;
  if (const auto bytes = option_of<int>(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT))
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &*bytes, sizeof *bytes);
}

bool Registrations::tell(const Registration& r, std::uint32_t events) {
  const int epfd = process().table.fd_of(r.epoll, r.generation);
  if (epfd < 0) return false;
  epoll_event event{events, r.data};
  if (!(events & EPOLLEXCLUSIVE)) return syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_MOD, r.fd, &event) == 0;
  // The kernel changes no such registration; made anew it tells at once what is ready, as a changed one does.
  return syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, r.fd, &event) == 0 &&
         syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, r.fd, &event) == 0;
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

bool Registrations::give_back() {
  bool is_told = false;
  for (Registration& r : all_) {
    if (!(r.wanted & kWritable)) continue;
    r.withheld = false;
    is_told |= tell(r, r.wanted);
  }
  return is_told;
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
