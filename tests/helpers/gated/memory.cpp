// SPDX-License-Identifier: Apache-2.0
//
// Cases of what a process has: memory (how much address space a gate takes, and the program's malloc, interrupted or
// with nothing left), descriptors of one's own, and a connection whose state is restored.
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <cerrno>
#include <vector>

#include "connections.hpp"

namespace {

// From now on, or with this variable from the start, the gate gets no pages from the kernel.
std::atomic<bool> has_no_pages{false};
constexpr const char* kNoPages = "REINET_TEST_NO_PAGES";

}  // namespace

// The gate finds this one.
extern "C" void* mmap(void* place, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (has_no_pages || std::getenv(kNoPages)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, place, bytes, protection, flags, fd, offset));
}

namespace {

unsigned long address_space_bytes() {
  unsigned long pages = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file || std::fscanf(file, "%lu", &pages) != 1) std::exit(3);
  std::fclose(file);
  return pages * static_cast<unsigned long>(sysconf(_SC_PAGESIZE));
}

void address_space() {
  const Pair p = pair(kSmallBufferBytes);
  const unsigned long before = address_space_bytes();
  fill(p.sender);
  read_for(p.peer, 50);
  fill(p.sender);
  std::printf("held %lu\n", address_space_bytes() - before);
}

// A handler that interrupts malloc() writes, each time into a connection that nothing was written into before.
std::vector<Pair> unused;
volatile sig_atomic_t written = 0;

void handler_within_malloc() {
  alarm(60);
  const Pair first = pair();
  (void)!write(first.sender, "a", 1);  // from now on there are two threads, and malloc() takes locks
  for (int i = 0; i < 200; ++i) unused.push_back(pair());
  struct sigaction writing{};
  writing.sa_handler = [](int) {
    if (written < 200) (void)!write(unused[static_cast<std::size_t>(written++)].sender, "a", 1);
  };
  sigaction(SIGPROF, &writing, nullptr);
  const itimerval often{{0, 1000}, {0, 1000}};
  setitimer(ITIMER_PROF, &often, nullptr);
  void* held[64] = {};
  for (std::size_t i = 0; written < 200; ++i) {
    std::free(held[i % 64]);
    held[i % 64] = std::malloc(2000 + i % 4000);
  }
  setitimer(ITIMER_PROF, nullptr, nullptr);
  std::printf("written 200\n");
}

void no_memory_left() {
  std::printf("begins\n");
  const Pair p = pair();
  const rlimit all{address_space_bytes(), RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &all);
  for (std::size_t bytes = 1 << 20; bytes >= 16; bytes /= 2)
    while (std::malloc(bytes)) {}
  std::printf("wrote %zd\n", write(p.sender, block.data(), 1000));
  std::printf("got %ld\n", read_for(p.peer, 10));
}

// A crowd sends in turns while the kernel has no pages left for the gate.
void no_pages_left() {
  std::vector<Pair> pairs;
  const int epfd = epoll_create1(0);
  epoll_event asked{EPOLLIN | EPOLLOUT, {}};
  for (int i = 0; i < 800; ++i) {
    pairs.push_back(pair(kSmallBufferBytes));
    epoll_ctl(epfd, EPOLL_CTL_ADD, pairs.back().sender, &asked);  // from now on the gate knows it
  }
  has_no_pages = true;
  std::printf("begins\n");
  for (int round = 0; round < 10; ++round, usleep(2000))
    for (const Pair& p : pairs) {
      (void)!send(p.sender, block.data(), 4000, MSG_DONTWAIT);
      (void)!recv(p.peer, block.data(), block.size(), MSG_DONTWAIT);
    }
  std::printf("ends\n");
}

// More descriptors than are open may be: the kernel refuses them, once the gate has looked at its own.
void no_memory_left_to_wait() {
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  std::vector<pollfd> asked(100'000, pollfd{-1, 0, 0});
  asked.front() = {p.sender, POLLOUT, 0};
  const rlimit few{1024, 1024}, all{address_space_bytes(), RLIM_INFINITY};
  setrlimit(RLIMIT_NOFILE, &few);
  setrlimit(RLIMIT_AS, &all);
  const timespec second{1, 0};
  std::printf("polled %d\n", poll(asked.data(), asked.size(), 1000));
  std::printf("polled %d\n", ppoll(asked.data(), asked.size(), &second, nullptr));
}

// Reads to the end of the connection; returns 0 at its end, -1 where none came.
long end_of(int fd) {
  for (int i = 0; i < 500; ++i) {
    ssize_t n;
    while ((n = recv(fd, block.data(), block.size(), MSG_DONTWAIT)) > 0) {}
    if (n == 0) return 0;
    usleep(10'000);
  }
  return -1;
}

// A program that closes a connection in descriptors of its own; the gate's thread has come before them.
void own_descriptors(int (*take)(int)) {
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  std::printf("took %d\n", take(p.sender));
  close(p.sender);
  std::printf("end %ld\n", end_of(p.peer));
  const Pair later = pair(kSmallBufferBytes);
  std::printf("held %ld\n", fill(later.sender));
}

void own_descriptors_by_unshare() {
  own_descriptors([](int) { return unshare(CLONE_FILES); });
}
void own_descriptors_by_close_range() {
  own_descriptors(
      [](int fd) { return close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), CLOSE_RANGE_UNSHARE); });
}

// One thread of several has them; what its numbers are is nothing of the others'.
void own_descriptors_of_a_thread() {
  const Pair p = pair(kSmallBufferBytes);
  const pthread_t thread = started([] {
    std::printf("took %d\n", unshare(CLONE_FILES));
    const Pair own = pair();
    (void)!write(own.sender, block.data(), 50'000);
    std::printf("got %ld\n", read_for(own.peer, 10));
  });
  pthread_join(thread, nullptr);
  std::printf("held %ld\n", fill(p.sender));
}

// As CRIU restores what waits in a connection: nobody acknowledges it until the end.
void restored() {
  alarm(60);
  const Pair p = pair();
  const int on = 1, send_queue = 2;
  std::printf("repairs %d\n", setsockopt(p.sender, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on));
  setsockopt(p.sender, IPPROTO_TCP, TCP_REPAIR_QUEUE, &send_queue, sizeof send_queue);
  std::size_t sent = 0;
  while (sent < 300'000) {
    const ssize_t taken = write(p.sender, block.data(), 300'000 - sent);
    if (taken <= 0) break;
    sent += static_cast<std::size_t>(taken);
  }
  std::printf("restored %zu\n", sent);
}

}  // namespace

const Cases kPossessionCases{
    {"address_space", address_space},
    {"handler_within_malloc", handler_within_malloc},
    {"no_memory_left", no_memory_left},
    {"no_memory_left_to_wait", no_memory_left_to_wait},
    {"no_pages_left", no_pages_left},
    {"own_descriptors_by_unshare", own_descriptors_by_unshare},
    {"own_descriptors_by_close_range", own_descriptors_by_close_range},
    {"own_descriptors_of_a_thread", own_descriptors_of_a_thread},
    {"restored", restored},
};
