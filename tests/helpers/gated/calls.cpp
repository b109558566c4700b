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
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
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
#include <initializer_list>
#include <vector>

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
  alarm(60);
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

// The same of files with nothing in them, and of one that has no size and yet something in it.
void empty_files() {
  alarm(60);
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  const int on_disk = file_of(0), in_memory = memfd_create("empty", 0);
  for (const int flags : {0, O_NONBLOCK}) {
    fcntl(p.sender, F_SETFL, flags);
    for (const int file : {on_disk, in_memory})
      for (off_t at : {0, 100}) say("empty", sendfile(p.sender, file, &at, 1000));
  }
  say("without a size", sendfile(p.sender, open("/proc/cpuinfo", O_RDONLY), nullptr, 1000));
}

// What comes with a message and makes no sense, for a connection that has no room.
void bad_messages() {
  alarm(60);
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
    message.msg_name = nullptr;
    message.msg_namelen = 0;
    say("open again", send(p.sender, block.data(), 1000, flags | MSG_FASTOPEN));
    say("open again", sendmsg(p.sender, &message, flags | MSG_FASTOPEN));
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

// The same with flags that mean something for files, of which a connection takes some.
void buffers_with_flags() {
  alarm(60);
  const Pair with_room = pair(), p = pair(kSmallBufferBytes);
  fill(p.sender);
  const iovec part{block.data(), 100};
  for (const int fd : {with_room.sender, p.sender}) {
    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (int flag = 1; flag <= 1 << 12; flag <<= 1) say("flag", pwritev2(fd, &part, 1, -1, flag));
  }
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
  alarm(60);
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
  alarm(60);
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

// A connection that its first data open (MSG_FASTOPEN), all in one call, to a peer that reads late.
template <class Send>
void opens_with(Send&& first) {
  alarm(60);
  const int listener = socket(AF_INET, SOCK_STREAM, 0), sender = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  setsockopt(listener, IPPROTO_TCP, TCP_MAXSEG, &kMssBytes, sizeof kMssBytes);
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &kSmallBufferBytes, sizeof kSmallBufferBytes);
  bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  listen(listener, 8);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const pthread_t opening = started([=] { say("sent", first(sender, address)); });
  const int peer = accept(listener, nullptr, nullptr);
  usleep(500'000);
  int held = 0;
  ioctl(sender, SIOCOUTQ, &held);
  std::printf("held %d\n", held);
  std::size_t got = 0;
  char into[65536];
  while (got < block.size()) {
    const ssize_t taken = recv(peer, into, sizeof into, 0);
    if (taken <= 0) break;
    got += static_cast<std::size_t>(taken);
  }
  pthread_join(opening, nullptr);
  std::printf("got %zu\n", got);
}

void opens_with_data() {
  opens_with([](int fd, const sockaddr_in& to) {
    return sendto(fd, block.data(), block.size(), MSG_FASTOPEN, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  });
}

void opens_with_a_message() {
  opens_with([](int fd, sockaddr_in to) {
    iovec part{block.data(), block.size()};
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return sendmsg(fd, &message, MSG_FASTOPEN);
  });
}

// What the kernel does not look at may be anything.
void what_is_not_looked_at() {
  const Pair p = pair();
  const int watching = epoll_create1(0);
  epoll_event event{EPOLLIN | EPOLLOUT, {}};
  say("added", epoll_ctl(watching, EPOLL_CTL_ADD, p.sender, &event));
  auto* nowhere = reinterpret_cast<epoll_event*>(std::uintptr_t{8});
  say("deleted", epoll_ctl(watching, EPOLL_CTL_DEL, p.sender, nowhere));
  pollfd asked{p.sender, POLLOUT, 0};
  volatile int count = -1;
  say("polled", poll(&asked, static_cast<nfds_t>(count), 100));
}

// The peer of a connection without room breaks it off while its end is awaited.
Pair pair_that_is_broken_off() {
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  started([=] {
    usleep(200'000);
    const linger none{1, 0};
    setsockopt(p.peer, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(p.peer);
  });
  return p;
}

void poll_at_the_end() {
  pollfd asked{pair_that_is_broken_off().sender, POLLIN | POLLOUT, 0};
  say("ready", poll(&asked, 1, 5000));
  std::printf("events %x\n", static_cast<unsigned>(asked.revents));
}

void select_at_the_end() {
  const int fd = pair_that_is_broken_off().sender;
  fd_set readable, writable;
  FD_ZERO(&readable);
  FD_ZERO(&writable);
  FD_SET(fd, &readable);
  FD_SET(fd, &writable);
  say("ready", select(fd + 1, &readable, &writable, nullptr, nullptr));
  std::printf("readable %d writable %d\n", FD_ISSET(fd, &readable), FD_ISSET(fd, &writable));
}

// Timeouts that say their seconds in microseconds, which the kernel takes.
void many_microseconds() {
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p.sender, &set);
  timeval later{0, 1'200'000};
  say("full", select(p.sender + 1, nullptr, &set, nullptr, &later));
  timeval never{1, (1LL << 62)};
  FD_SET(p.sender, &set);
  started([=] { usleep(100'000), read_for(p.peer, 100); });
  say("read", select(p.sender + 1, nullptr, &set, nullptr, &never));
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

// A thousand connections without room, in one poll() after the other and in one select() after the other.
void waits_for_many() {
  alarm(60);
  const rlimit many{4096, 4096};
  setrlimit(RLIMIT_NOFILE, &many);
  std::vector<pollfd> asked;
  for (int i = 0; i < 1000; ++i) {
    asked.push_back({pair(kSmallBufferBytes).sender, POLLOUT, 0});
    fcntl(asked.back().fd, F_SETFL, O_NONBLOCK);
  }
  for (int quiet = 0; quiet < 20; ++quiet) {
    for (const pollfd& p : asked)
      if (write(p.fd, block.data(), kMegabyte) > 0) quiet = 0;
    usleep(20'000);
  }
  std::vector<fd_mask> set(4096 / NFDBITS);
  for (const bool polls : {true, false}) {
    const long before = looks;
    for (const pollfd& p : asked) set[static_cast<std::size_t>(p.fd / NFDBITS)] |= fd_mask{1} << (p.fd % NFDBITS);
    timeval later{2, 0};
    const int ready = polls ? poll(asked.data(), asked.size(), 2000)
                            : select(4096, nullptr, reinterpret_cast<fd_set*>(set.data()), nullptr, &later);
    std::printf("ready %d looks %s\n", ready, looks - before < 2 * 60'000 ? "few" : "many");
  }
}

}  // namespace

const Cases kCallCases{
    {"files_at_an_open_gate", files_at_an_open_gate},
    {"file_at_its_end", file_at_its_end},
    {"empty_files", empty_files},
    {"bad_messages", bad_messages},
    {"buffers_at_the_next_place", buffers_at_the_next_place},
    {"buffers_with_flags", buffers_with_flags},
    {"more_than_a_call_takes", more_than_a_call_takes},
    {"opens_with_data", opens_with_data},
    {"opens_with_a_message", opens_with_a_message},
    {"what_is_not_looked_at", what_is_not_looked_at},
    {"large_sets", large_sets},
    {"many_in_a_small_set", many_in_a_small_set},
    {"poll_at_the_end", poll_at_the_end},
    {"select_at_the_end", select_at_the_end},
    {"many_microseconds", many_microseconds},
    {"one_of_two_opens", one_of_two_opens},
    {"waits_for_many", waits_for_many},
};
#endif
