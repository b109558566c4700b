// SPDX-License-Identifier: Apache-2.0
//
// Cases of descriptors of one's own, and of a connection whose state is restored.
#include <linux/close_range.h>
#include <sched.h>

#include <cerrno>

#include "connections.hpp"

namespace {

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

const Cases kTableCases{
    {"own_descriptors_by_unshare", own_descriptors_by_unshare},
    {"own_descriptors_by_close_range", own_descriptors_by_close_range},
    {"own_descriptors_of_a_thread", own_descriptors_of_a_thread},
    {"restored", restored},
};
