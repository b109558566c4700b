// SPDX-License-Identifier: Apache-2.0
//
// What the programs of this folder have in common: connections to themselves, threads, and a main() by a case's name.
#ifndef REINET_TESTS_CONNECTIONS_HPP
#define REINET_TESTS_CONNECTIONS_HPP

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

constexpr int kMssBytes = 536, kSmallBufferBytes = 4096;
constexpr std::size_t kMegabyte = 1 << 20;
inline std::vector<char> block(kMegabyte, 'a');

// How often the gate, or whoever, looked at connections (TCP_INFO); processes.cpp counts.
inline std::atomic<long> looks{0};
// Whether SIGUSR1 is to come to this thread as it looks next; the same file sees to it.
inline thread_local bool is_struck_in_the_gate = false;

struct Pair {
  int sender, peer;
};
inline Pair pair(int receive_buffer_bytes = 0) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  setsockopt(listener, IPPROTO_TCP, TCP_MAXSEG, &kMssBytes, sizeof kMssBytes);
  bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  listen(listener, 8);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  Pair made{};
  made.peer = socket(AF_INET, SOCK_STREAM, 0);
  if (receive_buffer_bytes)
    setsockopt(made.peer, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  connect(made.peer, reinterpret_cast<sockaddr*>(&address), size);
  made.sender = accept(listener, nullptr, nullptr);
  close(listener);
  return made;
}

// Writes without waiting until nothing goes any more for a while; returns the bytes.
inline long fill(int fd) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  long sent = 0;
  for (int quiet = 0; quiet < 30; ++quiet) {
    const ssize_t taken = write(fd, block.data(), 65536);
    if (taken > 0) sent += taken, quiet = 0;
    usleep(10'000);
  }
  fcntl(fd, F_SETFL, 0);
  return sent;
}

inline long read_for(int fd, int rounds) {
  static char into[65536];
  long got = 0;
  for (int i = 0; i < rounds; ++i) {
    ssize_t n;
    while ((n = recv(fd, into, sizeof into, MSG_DONTWAIT)) > 0) got += n;
    usleep(10'000);
  }
  return got;
}

inline pthread_t started(std::function<void()> work, std::size_t stack_bytes = 0) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (stack_bytes) pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_t thread;
  const auto run = [](void* what) -> void* {
    (*static_cast<std::function<void()>*>(what))();
    return nullptr;
  };
  const int failed = pthread_create(&thread, &attributes, run, new std::function<void()>(std::move(work)));
  if (failed) std::exit(3);
  return thread;
}

// As programs with a system call of their own register, which no preload sees (Rust's rustix).
inline void control_unseen(int epfd, int operation, int fd, std::uint32_t events) {
  static const auto call =
      reinterpret_cast<long (*)(long, ...)>(dlsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "syscall"));
  epoll_event event{events, {.fd = fd}};
  if (call(SYS_epoll_ctl, epfd, operation, fd, &event) != 0) std::exit(3);
}

using Cases = std::map<std::string, void (*)()>;
extern const Cases kProcessCases, kPossessionCases, kCallCases, kWaitCases;

inline int run_case(const Cases& cases, int count, char** words) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto found = count == 2 ? cases.find(words[1]) : cases.end();
  if (found == cases.end()) return 2;
  found->second();
  std::fflush(stdout);
  std::exit(0);
}

#endif
