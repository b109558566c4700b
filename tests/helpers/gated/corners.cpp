// SPDX-License-Identifier: Apache-2.0
//
// Single cases that Python cannot make, each named on the command line: threads that are cancelled or have little
// stack, descriptors that change hands under a waiting write, and what processes.cpp, memory.cpp, calls.cpp
// and waits.cpp have. Prints what was seen; what is printed must not depend on the gate, but for lines that begin with
// "held".
#include <time.h>  // before what needs its timespec

#include <linux/errqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "connections.hpp"

namespace {

void say_cancelled(pthread_t thread) {
  usleep(200'000);
  pthread_cancel(thread);
  timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 5;
  void* result = nullptr;
  const int late = pthread_timedjoin_np(thread, &result, &end);
  std::printf("cancelled %d late %d\n", result == PTHREAD_CANCELED, late != 0);
}

// A thread that waits in a write is cancelled, and the connection serves others after it.
void cancelled_write() {
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  say_cancelled(started([=] { (void)!write(p.sender, block.data(), 100'000); }));
  started([=] { read_for(p.peer, 1000); });
  usleep(100'000);
  std::printf("wrote %zd\n", write(p.sender, block.data(), 50'000));
}

void cancelled_poll() {
  say_cancelled(started([] {
    pollfd nothing{-1, 0, 0};
    poll(&nothing, 1, -1);
  }));
}

// Of two that write into one connection, the second one while the first is cut into pieces.
template <class Handle>
void second_writer(Handle&& handle) {
  alarm(60);
  const Pair p = pair(kSmallBufferBytes);
  struct sigaction quiet{};  // without SA_RESTART
  quiet.sa_handler = [](int) {};
  sigaction(SIGUSR1, &quiet, nullptr);
  fill(p.sender);
  const pthread_t first = started([=] { std::printf("first %zd\n", write(p.sender, block.data(), 50'000)); });
  usleep(200'000);
  handle(started([=] {
    const ssize_t sent = write(p.sender, block.data(), 50'000);
    std::printf("second %zd interrupted %d\n", sent, errno == EINTR);
  }));
  read_for(p.peer, 100);
  pthread_join(first, nullptr);
}

void second_writer_is_interrupted() {
  second_writer([](pthread_t second) {
    usleep(200'000);
    pthread_kill(second, SIGUSR1);
    pthread_join(second, nullptr);
  });
}

void second_writer_is_cancelled() { second_writer(say_cancelled); }

// Its handler forks, and both processes go on with the write where they are.
void second_writer_forks() {
  second_writer([](pthread_t second) {
    struct sigaction forking{};
    forking.sa_handler = [](int) {
      if (fork() == 0) alarm(60);
    };
    forking.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &forking, nullptr);
    usleep(200'000);
    pthread_kill(second, SIGUSR1);
  });
  int status = -1;
  wait(&status);
  std::printf("status %x\n", static_cast<unsigned>(status));
}

// Sendfile is no cancellation point: the thread ends at the next one.
void cancelled_sendfile() {
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  FILE* file = std::tmpfile();
  std::fwrite(block.data(), 1, 100'000, file);
  std::fflush(file);
  started([=] { usleep(600'000), read_for(p.peer, 1000); });
  off_t at = 0;
  say_cancelled(started([=]() mutable {
    const ssize_t sent = sendfile(p.sender, fileno(file), &at, 100'000);
    std::printf("sent %zd\n", sent);
    pthread_testcancel();
  }));
}

void little_stack() {
  const Pair p = pair();
  started([=] { read_for(p.peer, 1000); });
  long sent = 0;
  const pthread_t thread = started(
      [&] {
        const iovec parts[] = {{block.data(), 700}, {block.data(), 1}, {block.data(), 800'000}};
        sent = writev(p.sender, parts, 3);
      },
      static_cast<std::size_t>(sysconf(_SC_THREAD_STACK_MIN)) + 4096);
  pthread_join(thread, nullptr);
  std::printf("sent %ld\n", sent);
}

// A descriptor becomes another connection while a write to the first one waits: nothing of it reaches the second.
void number_used_again() {
  const Pair first = pair(kSmallBufferBytes), second = pair();
  fill(first.sender);
  started([=] { (void)!write(first.sender, block.data(), 100'000); });
  usleep(200'000);
  dup2(second.sender, first.sender);
  usleep(200'000);
  std::printf("another's bytes %ld\n", read_for(second.peer, 20));
}

// A socket that is dissolved connects anew: what its first connection counted is nothing of the second one's.
void connects_anew() {
  const rlimit some{1UL << 31, 1UL << 31};
  setrlimit(RLIMIT_AS, &some);
  const int listener = socket(AF_INET, SOCK_STREAM, 0), sender = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  listen(listener, 8);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  for (const int rounds : {100, 20}) {
    (void)!connect(sender, reinterpret_cast<sockaddr*>(&address), size);
    const int peer = accept(listener, nullptr, nullptr);
    started([=] { read_for(peer, 100); });
    ssize_t sent = 0;
    for (int i = 0; i < rounds; ++i) sent += write(sender, block.data(), 10'000);
    std::printf("sent %zd\n", sent);
    usleep(100'000);
    const sockaddr nobody{};
    std::printf("dissolved %d\n", connect(sender, &nobody, sizeof nobody));
  }
}

// The same while a write waits: what it has not sent is for the first connection's peer alone.
void connects_anew_beside_a_waiting_write() {
  signal(SIGPIPE, SIG_IGN);
  const int listener = socket(AF_INET, SOCK_STREAM, 0), sender = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &kSmallBufferBytes, sizeof kSmallBufferBytes);
  setsockopt(listener, IPPROTO_TCP, TCP_MAXSEG, &kMssBytes, sizeof kMssBytes);
  listen(listener, 8);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  (void)!connect(sender, reinterpret_cast<sockaddr*>(&address), size);
  accept(listener, nullptr, nullptr);
  fill(sender);
  const pthread_t waiting = started([=] { std::printf("wrote %zd\n", write(sender, block.data(), 100'000)); });
  usleep(200'000);
  const sockaddr nobody{};
  const int dissolved = connect(sender, &nobody, sizeof nobody);
  const int connected = connect(sender, reinterpret_cast<sockaddr*>(&address), size);
  std::printf("dissolved %d connected %d\n", dissolved, connected);
  const int peer = accept(listener, nullptr, nullptr);
  std::printf("another's bytes %ld\n", read_for(peer, 50));
  pthread_join(waiting, nullptr);
}

// What a failed read() returned is written all the same: no memory of the process is anybody's.
void count_below_zero() {
  const Pair p = pair(kSmallBufferBytes);
  volatile std::size_t count = static_cast<std::size_t>(-1);
  ssize_t result = write(p.sender, block.data(), count);
  std::printf("wrote %zd %d\n", result, errno);
  off_t at = 0;
  std::FILE* file = std::tmpfile();
  std::fwrite(block.data(), 1, 1000, file);
  std::fflush(file);
  result = sendfile(p.sender, fileno(file), &at, count);
  std::printf("sent %zd %d\n", result, errno);
  std::printf("got %ld\n", read_for(p.peer, 20));
}

// A relay waits for a pipe that is empty, and another thread writes into the same connection meanwhile.
void splice_from_an_empty_pipe() {
  const Pair p = pair();
  int ends[2];
  if (pipe(ends)) std::exit(3);
  started([=] { read_for(p.peer, 1000); });
  const pthread_t relay = started([=] {
    const ssize_t brought = splice(ends[0], nullptr, p.sender, nullptr, kMegabyte, 0);
    std::printf("brought %zd\n", brought);
  });
  usleep(200'000);
  const pthread_t writer = started([=] { std::printf("wrote %zd\n", write(p.sender, block.data(), 100'000)); });
  timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 5;
  std::printf("late %d\n", pthread_timedjoin_np(writer, nullptr, &end) != 0);
  (void)!write(ends[1], block.data(), 1000);
  pthread_join(relay, nullptr);
}

// A write that waits is let go in its midst: its connection's readiness is told once (EPOLLONESHOT).
void let_go_in_a_write() {
  const Pair p = pair();
  const int watching = epoll_create1(0);
  epoll_event once{EPOLLOUT | EPOLLONESHOT, {}};
  epoll_ctl(watching, EPOLL_CTL_ADD, p.sender, &once);
  started([=] { read_for(p.peer, 1000); });
  std::printf("wrote %zd\n", write(p.sender, block.data(), block.size()));
}

// Files and pipes that bring nothing to a connection that has no room, in calls that wait and in calls that do not.
void nothing_to_bring() {
  alarm(60);
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  int ends[2], ended[2];
  if (pipe(ends) || pipe(ended) || write(ends[1], "abc", 3) != 3) std::exit(3);
  close(ended[1]);
  const int file = open("/proc/self/exe", O_RDONLY);
  const auto say = [](const char* what, ssize_t result) {
    std::printf("%s %zd %d\n", what, result, result < 0 ? errno : 0);
  };
  for (const int flags : {0, O_NONBLOCK}) {
    fcntl(p.sender, F_SETFL, flags);
    for (const int from : {9999, file, ends[1], ended[0]})
      say("splice", splice(from, nullptr, p.sender, nullptr, 1000, 0));
    off64_t at = 0;
    say("from a place", splice(ends[0], &at, p.sender, nullptr, 1000, 0));
    say("to a place", splice(ends[0], nullptr, p.sender, &at, 1000, 0));
    say("flags", splice(ends[0], nullptr, p.sender, nullptr, 1000, 0x100));
    for (const int from : {9999, ends[0]}) say("sendfile", sendfile(p.sender, from, nullptr, 1000));
    off_t below = -5;
    say("below zero", sendfile(p.sender, file, &below, 1000));
  }
}

// Who sends with MSG_ZEROCOPY learns by the number of the call when its buffer is free again.
void zero_copies() {
  const Pair p = pair();
  const int on = 1;
  setsockopt(p.sender, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
  started([=] { read_for(p.peer, 1000); });
  for (int i = 0; i < 2; ++i) std::printf("sent %zd\n", send(p.sender, block.data(), kMegabyte, MSG_ZEROCOPY));
  usleep(300'000);
  unsigned told = 0;
  while (true) {
    char control[256];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(p.sender, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof error);
    told += error.ee_data - error.ee_info + 1;
  }
  std::printf("told %u\n", told);
}

// Connections that send no more than an initial window, and then one that sends more in small pieces.
void short_connections() {
  const auto threads = [] {
    char text[4096] = "";
    FILE* file = std::fopen("/proc/self/status", "r");
    const std::size_t size = file ? std::fread(text, 1, sizeof text - 1, file) : 0;
    const char* found = size ? std::strstr(text, "Threads:") : nullptr;
    return found ? std::atoi(found + 8) : 0;
  };
  for (int i = 0; i < 50; ++i) {
    const Pair p = pair();
    (void)!write(p.sender, block.data(), 240);
    std::printf("wrote %zd\n", send(p.sender, block.data(), 1000, 0));
    std::printf("got %ld\n", read_for(p.peer, 1));
    close(p.sender);
    close(p.peer);
  }
  std::printf("threads %d\n", threads());
  const Pair p = pair();
  for (int i = 0; i < 20; ++i) (void)!write(p.sender, block.data(), 1000);
  std::printf("held %d\n", threads());
}

// At one epoll that the gate does not see, which tells of one after the other; their peers read nothing.
void many_at_an_unseen_epoll() {
  constexpr int kMany = 300, kMostInVain = 2'000'000, kWaitMs = 500;
  const int epfd = epoll_create1(0);
  for (int i = 0; i < kMany; ++i) control_unseen(epfd, EPOLL_CTL_ADD, pair(kSmallBufferBytes).sender, EPOLLOUT);
  int in_vain = 0;
  for (epoll_event event; in_vain < kMostInVain && epoll_wait(epfd, &event, 1, kWaitMs) == 1;)
    in_vain += send(event.data.fd, block.data(), 1000, MSG_DONTWAIT) < 0;
  std::puts(in_vain < kMostInVain ? "slept" : "spun");
}

const Cases kCases{
    {"cancelled_write", cancelled_write},
    {"cancelled_poll", cancelled_poll},
    {"cancelled_sendfile", cancelled_sendfile},
    {"second_writer_is_interrupted", second_writer_is_interrupted},
    {"second_writer_is_cancelled", second_writer_is_cancelled},
    {"second_writer_forks", second_writer_forks},
    {"little_stack", little_stack},
    {"number_used_again", number_used_again},
    {"connects_anew", connects_anew},
    {"connects_anew_beside_a_waiting_write", connects_anew_beside_a_waiting_write},
    {"count_below_zero", count_below_zero},
    {"splice_from_an_empty_pipe", splice_from_an_empty_pipe},
    {"let_go_in_a_write", let_go_in_a_write},
    {"nothing_to_bring", nothing_to_bring},
    {"zero_copies", zero_copies},
    {"short_connections", short_connections},
    {"many_at_an_unseen_epoll", many_at_an_unseen_epoll},
};

}  // namespace

int main(int count, char** words) {
  Cases cases = kCases;
  for (const Cases* more : {&kProcessCases, &kPossessionCases, &kCallCases, &kWaitCases})
    cases.insert(more->begin(), more->end());
  return run_case(cases, count, words);
}
