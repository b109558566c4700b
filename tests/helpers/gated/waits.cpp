// SPDX-License-Identifier: Apache-2.0
//
// Waits of one thread beside what others do: handlers, forks, descriptors' numbers, who looks users up.
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <initializer_list>

#include "connections.hpp"

namespace {

constexpr int kAlarmUs = 50'000, kPauseUs = 1000, kWaitMs = 1000;
constexpr std::size_t kSlowBytes = 1 << 18;

void after(int us, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval once{{0, 0}, {us / 1'000'000, us % 1'000'000}};
  setitimer(ITIMER_REAL, &once, nullptr);
}

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

void read_all(int fd, int pause_us = 0) {
  char into[65536];
  while (recv(fd, into, sizeof into, 0) > 0) usleep(static_cast<useconds_t>(pause_us));
}

// Writes all in pieces that do not wait, and waits for edges between them; returns whether one never came.
bool is_forgotten(int fd, int epfd) {
  epoll_event event{EPOLLOUT | EPOLLET, {.fd = fd}};
  epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event);
  for (std::size_t left = kSlowBytes; left > 0;) {
    const ssize_t taken = send(fd, block.data(), left, MSG_DONTWAIT);
    if (taken > 0)
      left -= static_cast<std::size_t>(taken);
    else if (errno != EAGAIN || epoll_wait(epfd, &event, 1, kWaitMs) != 1)
      return true;
  }
  return false;
}

// While a write waits, its connection is closed, and the next one gets the number and waits for edges.
void number_goes_to_one_that_waits() {
  int forgotten = 0;
  for (int round = 0; round < 40; ++round) {
    const Pair old = pair(kSmallBufferBytes), next = pair();
    const pthread_t writer = started([=] { (void)!send(old.sender, block.data(), block.size(), MSG_NOSIGNAL); });
    usleep(20'000);
    const int epfd = epoll_create1(0);
    shutdown(old.sender, SHUT_RDWR);
    close(old.sender);
    const int fd = fcntl(next.sender, F_DUPFD, old.sender);
    close(next.sender);
    const pthread_t reader = started([=] { read_all(next.peer); });
    forgotten += fd != old.sender || is_forgotten(fd, epfd);
    close(fd);
    pthread_join(writer, nullptr);
    pthread_join(reader, nullptr);
    close(epfd);
    close(old.peer);
    close(next.peer);
  }
  std::printf("forgotten %d\n", forgotten);
}

sigjmp_buf place;

// What a thread writes after a handler has jumped out of a wait for something else.
template <class Wait>
void jump_out_of(Wait&& wait, int alarm_us = kAlarmUs) {
  const Pair p = pair(kSmallBufferBytes);
  int ends[2];
  if (pipe(ends) != 0) std::exit(3);
  if (sigsetjmp(place, 1) == 0) {
    after(alarm_us, [](int) { siglongjmp(place, 1); });
    wait(ends[0]);
  }
  std::printf("held %ld\n", fill(p.sender));
}

void poll_for(int fd) {
  pollfd asked{fd, POLLIN, 0};
  poll(&asked, 1, -1);
}

void jumps_out_of_poll() { jump_out_of(poll_for); }

void jumps_out_of_read_by_select() {
  jump_out_of([](int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    select(fd + 1, &set, nullptr, nullptr, nullptr);
  });
}

void jumps_out_of_poll_at_a_closed_gate() {
  const auto wait = [](int) {
    const Pair closed = pair(kSmallBufferBytes);
    pollfd asked{closed.sender, POLLOUT, 0};
    do {  // the kernel may find room once more, and the handler is to find a thread that waits
      fill(closed.sender);
    } while (poll(&asked, 1, -1) > 0);
  };
  jump_out_of(wait, 40 * kAlarmUs);
}

void jumps_out_of_a_write_into_a_pipe() {
  jump_out_of([](int) {
    int full[2];
    if (pipe(full) != 0) std::exit(3);
    (void)!write(full[1], block.data(), block.size());
  });
}

void jumps_out_of_a_write_at_a_closed_gate() {
  jump_out_of([](int) {
    const Pair closed = pair(kSmallBufferBytes);
    while (write(closed.sender, block.data(), block.size()) > 0) {}
  });
}

int written_fd;
long handler_held;

// A program whose main thread polls, and that works in handlers.
void writes_in_a_handler() {
  const Pair p = pair(kSmallBufferBytes);
  written_fd = p.sender;
  int ends[2];
  if (pipe(ends) != 0) std::exit(3);
  after(kAlarmUs, [](int) { handler_held = fill(written_fd); });
  poll_for(ends[0]);
  std::printf("held %ld\n", handler_held);
}

bool is_late;

// A handler that runs while the gate looks, between two slices of a wait.
void struck_between_slices() {
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  signal(SIGUSR1, [](int) {});
  const auto told = [](const char* name, int result) {
    std::printf("%s %d %s%s\n", name, result, std::strerror(errno), is_late ? ", late" : "");
  };
  after(kWaitMs * 1000, [](int) { is_late = true; });
  pollfd asked{p.sender, POLLOUT, 0};
  is_struck_in_the_gate = true;
  told("poll", poll(&asked, 1, -1));
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p.sender, &set);
  after(kWaitMs * 1000, [](int) { is_late = true; });
  is_struck_in_the_gate = true;
  told("select", select(p.sender + 1, nullptr, &set, nullptr, nullptr));
}

// SPLICE_F_NONBLOCK is for the pipe alone.
void splices_what_is_there() {
  const Pair p = pair(kSmallBufferBytes);
  int ends[2];
  if (pipe(ends) != 0) std::exit(3);
  const pthread_t reader = started([=] { read_all(p.peer); });
  int refused = 0;
  for (int round = 0; round < 8; ++round) {
    (void)!write(ends[1], block.data(), 65536);
    for (int left = 1; left > 0; ioctl(ends[0], FIONREAD, &left))
      refused += splice(ends[0], nullptr, p.sender, nullptr, 65536, SPLICE_F_NONBLOCK) < 0;
  }
  const ssize_t none = splice(ends[0], nullptr, p.sender, nullptr, 65536, SPLICE_F_NONBLOCK);
  std::printf("refused %d, of nothing %zd %s\n", refused, none, std::strerror(errno));
  shutdown(p.sender, SHUT_WR);
  pthread_join(reader, nullptr);
}

void splices_nothing_at_a_closed_gate() {
  const Pair p = pair(kSmallBufferBytes);
  int ends[2];
  if (pipe(ends) != 0) std::exit(3);
  fill(p.sender);
  alarm(10);
  const ssize_t none = splice(ends[0], nullptr, p.sender, nullptr, 65536, SPLICE_F_NONBLOCK);
  std::printf("of nothing %zd %s\n", none, std::strerror(errno));
}

// The gate's room is more than the kernel's.
void pwritev2_that_may_not_wait() {
  const Pair p = pair(400'000);
  constexpr int kBytes = 16'384;
  setsockopt(p.sender, SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof kBytes);
  alarm(20);
  const std::vector<iovec> buffers(8, {block.data(), block.size()});
  ssize_t taken = 0;
  for (int quiet = 0; quiet < 30; quiet = taken > 0 ? 0 : quiet + 1) {
    taken = pwritev2(p.sender, buffers.data(), static_cast<int>(buffers.size()), -1, RWF_NOWAIT);
    if (taken < 0) usleep(1'000);
  }
  std::printf("at last %zd %s\n", taken, std::strerror(errno));
}

// Processes that are made past fork()'s handlers: what each holds.
void made_past_the_handlers() {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  for (const int way : {0, 1}) {
    const Pair p = pair(kSmallBufferBytes);
    const long child = way ? syscall(SYS_clone3, &arguments, sizeof arguments) : _Fork();
    if (child == 0) {
      std::printf("held %ld\n", fill(p.sender));
      std::fflush(stdout);
      _exit(0);
    }
    waitpid(static_cast<pid_t>(child), nullptr, 0);
  }
  const long none = syscall(SYS_clone3, 8L, sizeof arguments);
  std::printf("of nowhere %ld %s\n", none, std::strerror(errno));
}

// The first write beyond an initial window, while another thread forks: the gate's thread is made, with memory that the
// allocator gives out again after the fork.
void first_write_beside_a_fork() {
  alarm(20);
  const Pair p = pair();
  const pthread_t forking = started([] {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, nullptr, 0);
  });
  usleep(10'000);
  (void)!send(p.sender, block.data(), 65536, MSG_DONTWAIT);
  pthread_join(forking, nullptr);
  std::puts("forked");
}

// Another thread's writes, while this one asks for a user's groups.
void slow_groups() {
  const Pair p = pair();
  std::atomic<bool> ends{false};
  double longest_s = 0;
  const pthread_t reader = started([=] { read_all(p.peer); });
  const pthread_t writer = started([&] {
    while (!ends) {
      const double before_s = now_s();
      (void)!send(p.sender, block.data(), 65536, MSG_NOSIGNAL);
      longest_s = std::max(longest_s, now_s() - before_s);
    }
  });
  usleep(100'000);
  initgroups("nobody", 65534);
  ends = true;
  pthread_join(writer, nullptr);
  shutdown(p.sender, SHUT_WR);
  pthread_join(reader, nullptr);
  std::puts(longest_s < 1 ? "went on" : "stood still");
}

void says_whether_forgotten(const Pair& p, int epfd, int pause_us = 0) {
  const pthread_t reader = started([peer = p.peer, pause_us] { read_all(peer, pause_us); });
  const bool forgotten = is_forgotten(p.sender, epfd);
  shutdown(p.sender, SHUT_WR);
  pthread_join(reader, nullptr);
  std::printf("forgotten %d\n", forgotten);
}

// An epoll by a copy of its descriptor that was made before it had anything to watch; the first one is closed.
void waits_at_a_copied_epoll() {
  const Pair p = pair(kSmallBufferBytes);
  const int first = epoll_create1(0), copy = dup(first);
  epoll_event event{EPOLLOUT | EPOLLET, {.fd = p.sender}};
  epoll_ctl(first, EPOLL_CTL_ADD, p.sender, &event);
  close(first);
  says_whether_forgotten(p, copy);
}

// Another thread takes descriptors of its own, and closes them all.
void waits_beside_descriptors_of_anothers_own() {
  const Pair p = pair(kSmallBufferBytes);
  const int epfd = epoll_create1(0);
  epoll_event event{EPOLLOUT | EPOLLET, {.fd = p.sender}};
  epoll_ctl(epfd, EPOLL_CTL_ADD, p.sender, &event);
  pthread_join(started([] { close_range(3, ~0U, CLOSE_RANGE_UNSHARE); }), nullptr);
  says_whether_forgotten(p, epfd);
}

// A handler writes into the connection of the write that it interrupts; the peer reads only after a while.
void writes_in_a_handler_of_a_waiting_write() {
  alarm(20);
  const Pair p = pair(kSmallBufferBytes);
  written_fd = p.sender;
  static ssize_t in_handler;
  after(kAlarmUs, [](int) { in_handler = write(written_fd, block.data(), kMssBytes); });
  long came = 0;
  const pthread_t reader = started([&] {
    usleep(4 * kAlarmUs);
    char into[65536];
    for (ssize_t taken; (taken = recv(p.peer, into, sizeof into, 0)) > 0;) came += taken;
  });
  const ssize_t in_call = write(p.sender, std::vector<char>(16 * kMegabyte).data(), 16 * kMegabyte);
  shutdown(p.sender, SHUT_WR);
  pthread_join(reader, nullptr);
  std::printf("in the handler %zd, all came %d\n", in_handler, came == in_call + in_handler && in_call > 0);
}

// Writes that do not wait, and waits for signals between them; the peer reads only after a while.
void waits_for_signals() {
  const Pair p = pair(kSmallBufferBytes);
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, SIGIO);
  pthread_sigmask(SIG_BLOCK, &told, nullptr);
  fcntl(p.sender, F_SETOWN, getpid());
  fcntl(p.sender, F_SETFL, O_NONBLOCK | O_ASYNC);
  const pthread_t reader = started([=] {
    usleep(2 * kAlarmUs);
    read_all(p.peer);
  });
  const timespec most{kWaitMs / 1000, 0};
  bool came = true;
  for (std::size_t left = 4 * kMegabyte; left > 0 && came;) {
    const ssize_t taken = write(p.sender, block.data(), std::min(left, kMegabyte));
    if (taken > 0) left -= static_cast<std::size_t>(taken);
    if (left > 0 && taken < static_cast<ssize_t>(kMegabyte)) came = sigtimedwait(&told, nullptr, &most) == SIGIO;
  }
  shutdown(p.sender, SHUT_WR);
  pthread_join(reader, nullptr);
  std::puts(came ? "told" : "never told");
}

// Writes as often as such an epoll says so, while the peer reads nothing; returns how often it was told in vain. Until
// it was so often there are no more descriptors.
int told_in_vain(int fd, int epfd, int without_descriptors = 0) {
  constexpr int kMost = 400'000;
  rlimit usual{};
  getrlimit(RLIMIT_NOFILE, &usual);
  const rlimit none{0, usual.rlim_max};
  if (without_descriptors > 0) setrlimit(RLIMIT_NOFILE, &none);
  int in_vain = 0;
  for (epoll_event event; in_vain < kMost;) {
    control_unseen(epfd, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT);
    if (epoll_wait(epfd, &event, 1, kWaitMs / 2) != 1) break;
    in_vain += send(fd, block.data(), 1000, MSG_DONTWAIT) < 0;
    if (in_vain == without_descriptors) setrlimit(RLIMIT_NOFILE, &usual);
  }
  return in_vain;
}

// Two connections, one after the other.
void waits_at_an_unseen_epoll() {
  alarm(60);
  const int epfd = epoll_create1(0);
  for (int i = 0; i < 2; ++i) {
    const Pair p = pair(kSmallBufferBytes);
    control_unseen(epfd, EPOLL_CTL_ADD, p.sender, EPOLLONESHOT);
    std::puts(told_in_vain(p.sender, epfd) < 10'000 ? "slept" : "spun");
  }
}

void waits_for_edges_unseen() {
  const Pair p = pair(kSmallBufferBytes);
  const int epfd = epoll_create1(0);
  control_unseen(epfd, EPOLL_CTL_ADD, p.sender, EPOLLOUT | EPOLLET);
  says_whether_forgotten(p, epfd, kPauseUs);
}

// The limit of descriptors is reached meanwhile.
void waits_at_an_unseen_epoll_without_descriptors() {
  alarm(60);
  const Pair p = pair(kSmallBufferBytes);
  const int epfd = epoll_create1(0);
  control_unseen(epfd, EPOLL_CTL_ADD, p.sender, EPOLLONESHOT);
  const int in_vain = told_in_vain(p.sender, epfd, 20'000);
  std::printf("refused %d\n", in_vain);
  std::puts(in_vain < 400'000 ? "slept" : "spun");
}

// Tries again without end; the epolls that there are do not tell whether it may be written.
void spins_without_an_epoll() {
  const Pair p = pair(kSmallBufferBytes);
  const int epfd = epoll_create1(0), seen = epoll_create1(0);
  control_unseen(epfd, EPOLL_CTL_ADD, p.peer, EPOLLOUT | EPOLLONESHOT);
  epoll_event event{EPOLLIN, {.fd = p.sender}};
  epoll_ctl(seen, EPOLL_CTL_ADD, p.sender, &event);
  long sent = 0;
  for (int refused = 0; refused < 50'000;) {
    const ssize_t taken = send(p.sender, block.data(), 1000, MSG_DONTWAIT);
    taken > 0 ? sent += taken : ++refused;
  }
  std::printf("held %ld\n", sent);
}

}  // namespace

const Cases kWaitCases{
    {"number_goes_to_one_that_waits", number_goes_to_one_that_waits},
    {"jumps_out_of_poll", jumps_out_of_poll},
    {"jumps_out_of_read_by_select", jumps_out_of_read_by_select},
    {"jumps_out_of_poll_at_a_closed_gate", jumps_out_of_poll_at_a_closed_gate},
    {"jumps_out_of_a_write_into_a_pipe", jumps_out_of_a_write_into_a_pipe},
    {"jumps_out_of_a_write_at_a_closed_gate", jumps_out_of_a_write_at_a_closed_gate},
    {"writes_in_a_handler", writes_in_a_handler},
    {"writes_in_a_handler_of_a_waiting_write", writes_in_a_handler_of_a_waiting_write},
    {"struck_between_slices", struck_between_slices},
    {"splices_what_is_there", splices_what_is_there},
    {"splices_nothing_at_a_closed_gate", splices_nothing_at_a_closed_gate},
    {"pwritev2_that_may_not_wait", pwritev2_that_may_not_wait},
    {"made_past_the_handlers", made_past_the_handlers},
    {"first_write_beside_a_fork", first_write_beside_a_fork},
    {"slow_groups", slow_groups},
    {"waits_at_a_copied_epoll", waits_at_a_copied_epoll},
    {"waits_beside_descriptors_of_anothers_own", waits_beside_descriptors_of_anothers_own},
    {"waits_for_signals", waits_for_signals},
    {"waits_at_an_unseen_epoll", waits_at_an_unseen_epoll},
    {"waits_for_edges_unseen", waits_for_edges_unseen},
    {"waits_at_an_unseen_epoll_without_descriptors", waits_at_an_unseen_epoll_without_descriptors},
    {"spins_without_an_epoll", spins_without_an_epoll},
};
