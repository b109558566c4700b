// SPDX-License-Identifier: Apache-2.0
//
// The cases of corners.cpp that are about a single call: what it answers where there is no room, and what it waits for.
// With COUNTS a library to preload behind the gate, which counts what a program and the gate ask the kernel for a file.
#ifdef COUNTS
#include <dlfcn.h>
#include <poll.h>
#include <sys/types.h>

#include <cstdio>

namespace {

int sendfiles = 0, splices = 0, looks = 0;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

[[gnu::destructor]] void say() { std::printf("sendfile %d splice %d ppoll %d\n", sendfiles, splices, looks); }

}  // namespace

extern "C" {

ssize_t sendfile(int to, int from, off_t* offset, size_t count) {
  ++sendfiles;
  return next<ssize_t (*)(int, int, off_t*, size_t)>("sendfile")(to, from, offset, count);
}
ssize_t splice(int from, off_t* from_offset, int to, off_t* to_offset, size_t size, unsigned flags) {
  ++splices;
  return next<ssize_t (*)(int, off_t*, int, off_t*, size_t, unsigned)>("splice")(from, from_offset, to, to_offset, size,
                                                                                 flags);
}
int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  ++looks;
  return next<int (*)(pollfd*, nfds_t, const timespec*, const sigset_t*)>("ppoll")(fds, count, timeout, mask);
}
}
#else
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "connections.hpp"

namespace {

void say(const char* what, ssize_t result) { std::printf("%s %zd %d\n", what, result, result < 0 ? errno : 0); }

int file_of(std::size_t bytes) {
  FILE* file = std::tmpfile();
  std::fwrite(block.data(), 1, bytes, file);
  std::fflush(file);
  return fileno(file);
}

// Files and pipes that there is room for.
void files_at_an_open_gate() {
  const Pair p = pair();
  const int file = file_of(1000);
  int ends[2];
  if (pipe(ends)) std::exit(3);
  ssize_t sent = 0, brought = 0;
  for (int i = 0; i < 20; ++i) {
    off_t at = 0;
    sent += sendfile(p.sender, file, &at, 1000);
    (void)!write(ends[1], block.data(), 1000);
    brought += splice(ends[0], nullptr, p.sender, nullptr, 1000, 0);
    read_for(p.peer, 1);
  }
  std::printf("sent %zd brought %zd\n", sent, brought);
}

// A file that has no more, for a connection that has no room, in calls that wait and in calls that do not.
void file_at_its_end() {
  alarm(20);
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  const int file = file_of(1000);
  for (const int flags : {0, O_NONBLOCK}) {
    fcntl(p.sender, F_SETFL, flags);
    off_t at = 1000;
    say("at its end", sendfile(p.sender, file, &at, 1000));
    lseek(file, 0, SEEK_END);
    say("where it is", sendfile(p.sender, file, nullptr, 1000));
  }
  lseek(file, 0, SEEK_SET);
  say("at its start", sendfile(p.sender, file, nullptr, 1000));
}

// What comes with a message and makes no sense, for a connection that has no room.
void bad_messages() {
  alarm(20);
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  iovec part{block.data(), 1000};
  alignas(cmsghdr) char control[CMSG_SPACE(4)] = {};
  auto* header = reinterpret_cast<cmsghdr*>(control);
  header->cmsg_len = CMSG_LEN(4);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = 9999;
  auto* nowhere = reinterpret_cast<char*>(std::uintptr_t{8});
  for (const int flags : {0, static_cast<int>(MSG_DONTWAIT)}) {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = nowhere;
    message.msg_controllen = sizeof control;
    say("control from nowhere", sendmsg(p.sender, &message, flags));
    mmsghdr several{message, 0};
    say("several", sendmmsg(p.sender, &several, 1, flags));
    message.msg_control = control;
    say("control of no kind", sendmsg(p.sender, &message, flags));
    message.msg_control = nullptr;
    message.msg_controllen = 0;
    message.msg_name = nowhere;
    message.msg_namelen = sizeof(sockaddr_in);
    say("name from nowhere", sendmsg(p.sender, &message, flags));
    const auto* address = reinterpret_cast<const sockaddr*>(nowhere);
    say("sendto", sendto(p.sender, block.data(), 1000, flags, address, sizeof(sockaddr_in)));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  say("good",
      sendto(p.sender, block.data(), 1000, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&address), sizeof address));
}

// pwritev2() writes into what has no places if it is told to write at the next one.
void buffers_at_the_next_place() {
  const Pair p = pair(kSmallBufferBytes);
  const iovec parts[] = {{block.data(), 30'000}, {block.data(), 35'536}};
  long held = 0;
  for (int quiet = 0; quiet < 30; ++quiet) {
    const ssize_t taken = pwritev2(p.sender, parts, 2, -1, RWF_NOWAIT);
    if (taken > 0) held += taken, quiet = 0;
    usleep(10'000);
  }
  say("without waiting", pwritev2(p.sender, parts, 2, -1, RWF_NOWAIT));
  say("at a place", pwritev2(p.sender, parts, 2, 0, 0));
  const pthread_t reader = started([=] { std::printf("got all %d\n", read_for(p.peer, 100) == held + 65'536); });
  say("waiting", pwritev2(p.sender, parts, 2, -1, 0));
  pthread_join(reader, nullptr);
  std::printf("held %ld\n", held);
}

// More than the kernel takes of one call.
void more_than_a_call_takes() {
  alarm(60);
  const Pair p = pair();
  constexpr std::size_t kBytes = 2'200'000'000;
  void* zeros = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  started([=] {
    while (recv(p.peer, nullptr, kMegabyte, MSG_TRUNC) > 0) {}
  });
  say("wrote", write(p.sender, zeros, kBytes));
}

constexpr int kLargeNumber = 2000, kLargeSetBits = 4096;
using Words = fd_mask[kLargeSetBits / NFDBITS];

fd_set* set_of(Words& words, int fd) {
  std::memset(words, 0, sizeof words);
  words[fd / NFDBITS] |= fd_mask{1} << (fd % NFDBITS);
  return reinterpret_cast<fd_set*>(words);
}
bool has(const Words& words, int fd) { return words[fd / NFDBITS] >> (fd % NFDBITS) & 1; }

// A set that is larger than fd_set, for a descriptor that does not fit into one.
void large_sets() {
  alarm(20);
  const rlimit many{kLargeSetBits, kLargeSetBits};
  setrlimit(RLIMIT_NOFILE, &many);
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  const int sender = dup2(p.sender, kLargeNumber);
  close(p.sender);
  Words writable, readable;
  timeval soon{0, 300'000};
  say("full", select(kLargeSetBits, nullptr, set_of(writable, sender), nullptr, &soon));
  std::printf("has %d\n", has(writable, sender));
  started([=] { usleep(100'000), read_for(p.peer, 1000); });
  say("read", select(kLargeSetBits, set_of(readable, sender), set_of(writable, sender), nullptr, nullptr));
  std::printf("has %d %d\n", has(readable, sender), has(writable, sender));
}

// As many descriptors as there may ever be, in a set of the usual size that ends where memory does.
void many_in_a_small_set() {
  alarm(20);
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* pages = mmap(nullptr, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(static_cast<char*>(pages) + page_bytes, page_bytes, PROT_NONE);
  auto* set = reinterpret_cast<fd_set*>(static_cast<char*>(pages) + page_bytes - sizeof(fd_set));
  FD_SET(p.sender, set);
  timeval soon{0, 300'000};
  say("full", select(1'000'000, nullptr, set, nullptr, &soon));
  FD_SET(p.sender, set);
  started([=] { usleep(100'000), read_for(p.peer, 1000); });
  say("read", select(1'000'000, nullptr, set, nullptr, nullptr));
}

// The peer of a connection without room breaks it off while its end is awaited.
void poll_at_the_end() {
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  started([=] {
    usleep(200'000);
    const linger none{1, 0};
    setsockopt(p.peer, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(p.peer);
  });
  pollfd asked{p.sender, POLLIN | POLLOUT, 0};
  say("ready", poll(&asked, 1, 5000));
  std::printf("events %x\n", static_cast<unsigned>(asked.revents));
}

// Of two connections without room one gets some.
void one_of_two_opens() {
  const Pair first = pair(kSmallBufferBytes), second = pair(kSmallBufferBytes);
  for (const bool polls : {true, false}) {
    fill(first.sender);
    fill(second.sender);
    started([=] { usleep(100'000), read_for(first.peer, 100); });
    pollfd asked[] = {{first.sender, POLLOUT, 0}, {second.sender, POLLOUT, 0}};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(first.sender, &set);
    FD_SET(second.sender, &set);
    if (polls) {
      say("poll", poll(asked, 2, 5000));
      std::printf("writable %d %d\n", asked[0].revents, asked[1].revents);
    } else {
      say("select", select(second.sender + 1, nullptr, &set, nullptr, nullptr));
      std::printf("writable %d %d\n", FD_ISSET(first.sender, &set), FD_ISSET(second.sender, &set));
    }
    usleep(1'200'000);
  }
}

}  // namespace

const Cases kCallCases{
    {"files_at_an_open_gate", files_at_an_open_gate},
    {"file_at_its_end", file_at_its_end},
    {"bad_messages", bad_messages},
    {"buffers_at_the_next_place", buffers_at_the_next_place},
    {"more_than_a_call_takes", more_than_a_call_takes},
    {"large_sets", large_sets},
    {"many_in_a_small_set", many_in_a_small_set},
    {"poll_at_the_end", poll_at_the_end},
    {"one_of_two_opens", one_of_two_opens},
};
#endif
