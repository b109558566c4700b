// SPDX-License-Identifier: Apache-2.0
//
// What an application asked epoll for about one connection. While its gate is closed, nobody who asked for write
// readiness by level is told of it; as it opens each registration is changed to what it is, which makes a new edge too.
#ifndef REINET_ALCC_REGISTRATIONS_HPP
#define REINET_ALCC_REGISTRATIONS_HPP

#include <sys/epoll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace reinet::alcc {

struct Epoll;

constexpr std::uint32_t kWritable = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
// A registration that is silent once it has told: whoever changes it has it tell again.
constexpr bool is_told_once(std::uint32_t events) { return (events & EPOLLONESHOT) && (events & kWritable); }

// Looks through the epolls of the process for one that has this socket and may tell when it can be written, whoever
// registered it. Returns nothing where nobody can look, as where descriptors have run out.
std::optional<bool> is_in_an_epoll(int fd);

// Tells whoever waits for an edge that this socket may be written, in whatever epoll of whatever process; where the
// kernel itself has no room, it tells when it has.
void make_edge(int fd);

class Registrations {
 public:
  bool empty() const { return all_.empty(); }
  std::size_t size() const { return all_.size(); }
  void clear() { all_.clear(); }
  bool has(int fd) const {
    return std::ranges::any_of(all_, [=](const Registration& r) { return r.fd == fd; });
  }
  void forget(int fd) {
    std::erase_if(all_, [=](const Registration& r) { return r.fd == fd; });
  }
  bool has_one_that_is_told_once() const;
  // The gate closes. Who asked for edges gets none for a buffer that never was full; only who asks for levels would
  // spin.
  void withhold();
  // The gate opens. Returns whether somebody is told.
  bool give_back();
  // As epoll_ctl for fd; withheld: the gate is closed.
  int control(int epfd, int operation, int fd, const epoll_event& asked, bool withheld);

 private:
  struct Registration {
    Epoll* epoll;
    std::uint32_t generation;  // of the epoll's
    int fd;
    std::uint32_t wanted;
    epoll_data_t data;
    bool withheld;  // the kernel was told of all but kWritable
  };

  static bool tell(const Registration& r, std::uint32_t events);

  std::vector<Registration> all_;
};

}  // namespace reinet::alcc

#endif
