// SPDX-License-Identifier: Apache-2.0
//
// The cases of corners.cpp that are about processes: that forbid themselves something, fork in odd places, are made
// past fork(), or whose main thread ends first.
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "connections.hpp"

namespace {

constexpr int kNobody = 65534;

}  // namespace

// As libcap calls the C library's, whose headers have none.
extern "C" int capset(__user_cap_header_struct* header, const __user_cap_data_struct* data);

// The gate asks it about a connection with its locks held: there a signal's handler interrupts this thread.
extern "C" int getsockopt(int fd, int level, int name, void* value, socklen_t* size) noexcept {
  const long result = syscall(SYS_getsockopt, fd, level, name, value, size);
  if (level == IPPROTO_TCP && name == TCP_INFO) ++looks;
  if (level == IPPROTO_TCP && name == TCP_INFO && std::exchange(is_struck_in_the_gate, false)) raise(SIGUSR1);
  return static_cast<int>(result);
}

namespace {

void forbid_processes() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_NPROC, &none);
}
void become_nobody() {
  if (setresuid(kNobody, kNobody, kNobody) != 0) std::exit(3);
}

// As vsftpd's sessions do.
void no_more_processes() {
  become_nobody();
  forbid_processes();
  std::printf("held %ld\n", fill(pair(kSmallBufferBytes).sender));
}

// The same before a change of user, with a connection that was sent into.
void no_more_processes_of_another_user() {
  forbid_processes();
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  become_nobody();
  read_for(p.peer, 50);
  std::printf("held %ld\n", fill(p.sender));
}

// From now on nobody, who this process becomes, can make no thread.
void allow_nobody_no_threads() {
  const rlimit few{2, 2};
  setrlimit(RLIMIT_NPROC, &few);
  int there[2];
  char byte;
  if (pipe(there) != 0) std::exit(3);
  for (int i = 0; i < 3; ++i)  // of that user's, so that the limit is reached
    if (const pid_t parent = getpid(); fork() == 0) {
      become_nobody();
      (void)!write(there[1], "", 1);
      while (getppid() == parent) usleep(100'000);
      _exit(0);
    }
  for (int i = 0; i < 3; ++i) (void)!read(there[0], &byte, 1);
}

// The gate's thread cannot begin again after the change of user, and a gate is closed.
void no_thread_after_all() {
  allow_nobody_no_threads();
  const Pair p = pair(kSmallBufferBytes);
  const int waiter = epoll_create1(0);
  epoll_event event{EPOLLOUT, {}};
  epoll_ctl(waiter, EPOLL_CTL_ADD, p.sender, &event);
  fill(p.sender);
  become_nobody();
  read_for(p.peer, 50);
  std::printf("writable %d\n", epoll_wait(waiter, &event, 1, 2000));
}

// A write waits at a closed gate when this comes, and the peer reads only a while after it.
void meanwhile_a_write_waits(const std::function<void()>& what) {
  alarm(60);
  const Pair p = pair(kSmallBufferBytes);
  fill(p.sender);
  const pthread_t thread = started([=] { std::printf("wrote %zd\n", write(p.sender, block.data(), 50'000)); });
  started([=] { usleep(600'000), read_for(p.peer, 1000); });
  usleep(200'000);
  what();
  pthread_join(thread, nullptr);
}

void no_thread_for_a_waiting_write() {
  allow_nobody_no_threads();
  meanwhile_a_write_waits(become_nobody);
}

// A filter ends the process for calls of this thread that only the gate makes.
void forbid_calls() {
  std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
  for (const unsigned number : {SYS_getsockopt, SYS_ioctl, SYS_clone3, SYS_openat}) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  std::printf("set %d\n", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

void sandbox() {
  const Pair p = pair();
  (void)!write(p.sender, block.data(), 1);
  forbid_calls();
  std::printf("wrote %zd\n", write(p.sender, block.data(), 1000));
}

// No thread can be made after this unshare(), so that the gate gives up at the first byte.
void sandbox_after_giving_up() {
  const Pair p = pair();
  std::printf("unshared %d\n", unshare(CLONE_NEWPID));
  std::printf("wrote %zd\n", write(p.sender, block.data(), 1000));
  forbid_calls();
}

void sandbox_beside_a_waiting_write() { meanwhile_a_write_waits(forbid_calls); }

void sandbox_beside_a_change_of_user() {
  alarm(60);
  const pthread_t leaving = started(forbid_calls);
  std::printf("changed %d\n", setuid(getuid()));
  pthread_join(leaving, nullptr);
}

// An epoll registration that cannot be changed without being felt: the gate says that it lets the connection alone.
void told_once() {
  const Pair p = pair();
  (void)!write(p.sender, block.data(), 1);
  epoll_event event{EPOLLOUT | EPOLLONESHOT, {}};
  std::printf("added %d\n", epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, p.sender, &event));
}

// Nobody reads standard error: what the gate says is lost, not the process.
void nobody_listens() {
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0) std::exit(3);
  close(ends[0]);
  execl("/proc/self/exe", "corners", "told_once", nullptr);
}

// The same where the pipe is full and nobody reads it.
void nobody_reads() {
  int ends[2];
  if (pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) < 0) std::exit(3);
  while (write(ends[1], block.data(), 4096) > 0) {}
  fcntl(ends[1], F_SETFL, 0);
  dup2(ends[1], STDERR_FILENO);
  execl("/proc/self/exe", "corners", "told_once", nullptr);
}

// The same where standard error is a log, and no file may grow: sshd's before a login.
void full_log() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_FSIZE, &none);
  dup2(fileno(std::tmpfile()), STDERR_FILENO);
  fcntl(STDERR_FILENO, F_SETFL, O_APPEND);
  told_once();
}

// Standard error was closed, and a file of data has its number.
void data_as_standard_error() {
  const int file = fileno(std::tmpfile());
  dup2(file, STDERR_FILENO);
  told_once();
  struct stat status{};
  fstat(file, &status);
  std::printf("bytes %ld\n", static_cast<long>(status.st_size));
}

std::set<int> threads() {
  std::set<int> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    found.insert(std::stoi(task.path().filename()));
  return found;
}

// What a program of one thread gives up, no thread keeps: each call in a process of its own that has sent.
void gives_up_privileges() {
  static __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  static __user_cap_data_struct none[2]{};
  constexpr long kUser = kNobody;
  const std::map<const char*, std::function<long()>> ways{
      {"capset", [] { return capset(&header, none); }},
      {"capset by number", [] { return syscall(SYS_capset, &header, none); }},
      {"user by number", [] { return syscall(SYS_setresuid, kUser, kUser, kUser); }},
      {"group by number", [] { return syscall(SYS_setresgid, kUser, kUser, kUser); }},
      {"groups by number", [] { return syscall(SYS_setgroups, 0, nullptr); }},
      {"files", [] { return syscall(SYS_landlock_restrict_self, -1, 0) == 0 ? 1L : 0L; }},  // of no set: an error
      {"programs of others", [] { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }},
      {"what it may ever have", [] { return prctl(PR_CAPBSET_DROP, CAP_SYS_TIME, 0, 0, 0); }},
  };
  for (const auto& [name, call] : ways) {
    if (fork() == 0) {
      const Pair p = pair(kSmallBufferBytes);
      fill(p.sender);
      const std::set<int> before = threads();
      const long result = call();
      std::set<int> kept = threads();
      std::erase_if(kept, [&](int thread) { return thread == getpid() || !before.contains(thread); });
      std::printf("%s %ld kept by %zu\n", name, result, kept.size());
      std::printf("held %ld\n", fill(pair(kSmallBufferBytes).sender));
      std::exit(0);
    }
    wait(nullptr);
  }
}

void namespace_of_users() {
  const Pair p = pair();
  (void)!write(p.sender, block.data(), 1);
  std::printf("entered %d\n", unshare(CLONE_NEWUSER));
}

// As vsftpd makes its sessions, in a container whose first process it is: parent and child are both number 1.
void made_past_fork() {
  if (unshare(CLONE_NEWPID) != 0) std::exit(3);
  const auto session = [] {
    const Pair p = pair(kSmallBufferBytes);
    fill(p.sender);
    started([=] { read_for(p.peer, 1000); });
    if (syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, nullptr, nullptr, nullptr, nullptr) == 0) {
      alarm(60);
      std::printf("number %d wrote %zd\n", getpid(), write(p.sender, block.data(), 50'000));
      const Pair own = pair(kSmallBufferBytes);
      std::printf("held %ld\n", fill(own.sender));
      if (fork() == 0) std::_Exit(0);
      std::printf("forked %d\n", wait(nullptr) > 0);
      std::exit(0);
    }
    int status = 0;
    wait(&status);
    std::printf("status %x\n", static_cast<unsigned>(status));
    std::exit(0);
  };
  if (fork() == 0) session();
  wait(nullptr);
}

// Children with a copy of memory in which other threads' locks may be held send and end.
void clones_beside_connections() {
  static std::atomic<bool> over{false};
  pthread_t threads[3];
  for (pthread_t& thread : threads)
    thread = started([] {
      while (!over) {
        const Pair p = pair();
        (void)!write(p.sender, block.data(), 1);
        close(p.sender), close(p.peer);
      }
    });
  const auto session = [](void* fd) -> int {
    alarm(60);
    _exit(write(*static_cast<int*>(fd), block.data(), 1) != 1);
  };
  static char stack[65536];
  int ended = 0;
  for (int i = 0; i < 500 && ended == i; ++i) {
    Pair p = pair();
    int status = 0;
    waitpid(clone(session, stack + sizeof stack, SIGCHLD, &p.sender), &status, 0);
    ended += status == 0;
    close(p.sender), close(p.peer);
  }
  over = true;
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  std::printf("ended %d\n", ended);
}

// A thread that is to be cancelled makes calls that are no cancellation points, in which the gate waits or says a word.
void cancelled_later() {
  const Pair p = pair();
  (void)!write(p.sender, block.data(), 1);
  static int changed = -1, added = -1;
  const pthread_t thread = started([=] {
    const int waiter = epoll_create1(0);
    epoll_event event{EPOLLOUT | EPOLLONESHOT, {}};
    pthread_cancel(pthread_self());
    changed = setuid(getuid());
    added = epoll_ctl(waiter, EPOLL_CTL_ADD, p.sender, &event);
    pthread_testcancel();
    added = -2;
  });
  void* result = nullptr;
  pthread_join(thread, &result);
  std::printf("changed %d added %d cancelled %d\n", changed, added, result == PTHREAD_CANCELED);
}

// A child that ends as servers' children do.
void child_is_killed() {
  const Pair p = pair();
  if (fork() == 0) {
    (void)!write(p.sender, block.data(), 1000);
    raise(SIGKILL);
  }
  wait(nullptr);
}

// A handler interrupts a write in the midst of the gate and forks; both processes go on with what it interrupted.
void forks_in_a_handler() {
  alarm(60);
  static pid_t child = -1;
  signal(SIGUSR1, [](int) { child = fork(); });
  const Pair p = pair(), other = pair(kSmallBufferBytes);
  is_struck_in_the_gate = true;  // at the first byte of a connection all is asked about it
  const ssize_t sent = write(p.sender, block.data(), 1000);
  if (std::exchange(is_struck_in_the_gate, false)) raise(SIGUSR1);  // without a gate
  if (child == 0) {
    alarm(60);
    started([=] { read_for(other.peer, 1000); });
    const ssize_t own = write(other.sender, block.data(), 50'000);
    std::printf("child %zd %zd\n", sent, own);
    std::exit(0);
  }
  wait(nullptr);
  std::printf("parent %zd\n", sent);
  std::printf("held %ld\n", fill(pair(kSmallBufferBytes).sender));
  if (fork() == 0) {
    std::printf("forked\n");
    std::exit(0);
  }
  wait(nullptr);
}

// The same of a write that does not wait, in a program that has epoll tell it when to go on; the child goes on late.
void forks_in_a_handler_beside_an_epoll() {
  alarm(60);
  static pid_t child = -1;
  signal(SIGUSR1, [](int) {
    if ((child = fork()) == 0) usleep(1'000'000);
  });
  const Pair p = pair(kSmallBufferBytes);
  fcntl(p.sender, F_SETFL, O_NONBLOCK);
  const int waiter = epoll_create1(0);
  epoll_event event{EPOLLOUT, {}};
  epoll_ctl(waiter, EPOLL_CTL_ADD, p.sender, &event);
  (void)!write(p.sender, block.data(), 1);
  is_struck_in_the_gate = true;
  (void)!write(p.sender, block.data(), kMegabyte);
  if (std::exchange(is_struck_in_the_gate, false)) raise(SIGUSR1);  // without a gate
  if (child == 0) _exit(0);
  for (const char* when : {"before", "after"}) {
    read_for(p.peer, 50);
    std::printf("writable %s the child %d\n", when, epoll_wait(waiter, &event, 1, 1000));
    wait(nullptr);
  }
}

// The main thread ends while another one still has to send: the process ends with the last of them.
void main_thread_ends_first() {
  started([] {
    usleep(100'000);
    std::printf("wrote %zd\n", write(pair().sender, block.data(), 1000));
  });
  pthread_exit(nullptr);
}

// The last thread leaves a closed gate behind.
void main_thread_ends_before_a_gate_closes() {
  started([] {
    usleep(100'000);
    std::printf("filled %d\n", fill(pair(kSmallBufferBytes).sender) > 0);
  });
  pthread_exit(nullptr);
}

// The main thread sends while it ends, beside no other one, and waits at a closed gate.
void main_thread_sends_as_it_ends() {
  const Pair p = pair(kSmallBufferBytes);
  if (fork() == 0) {
    close(p.sender);
    usleep(300'000);
    read_for(p.peer, 100);
    _exit(0);
  }
  struct Last {
    int fd;
    ~Last() { std::printf("wrote %zd\n", write(fd, block.data(), 50'000)); }
  } last{p.sender};
  (void)!write(p.sender, block.data(), 1);
  pthread_exit(nullptr);
}

}  // namespace

const Cases kProcessCases{
    {"no_more_processes", no_more_processes},
    {"no_more_processes_of_another_user", no_more_processes_of_another_user},
    {"no_thread_after_all", no_thread_after_all},
    {"no_thread_for_a_waiting_write", no_thread_for_a_waiting_write},
    {"sandbox", sandbox},
    {"sandbox_after_giving_up", sandbox_after_giving_up},
    {"sandbox_beside_a_waiting_write", sandbox_beside_a_waiting_write},
    {"sandbox_beside_a_change_of_user", sandbox_beside_a_change_of_user},
    {"nobody_listens", nobody_listens},
    {"nobody_reads", nobody_reads},
    {"told_once", told_once},
    {"full_log", full_log},
    {"data_as_standard_error", data_as_standard_error},
    {"gives_up_privileges", gives_up_privileges},
    {"namespace_of_users", namespace_of_users},
    {"made_past_fork", made_past_fork},
    {"clones_beside_connections", clones_beside_connections},
    {"cancelled_later", cancelled_later},
    {"child_is_killed", child_is_killed},
    {"forks_in_a_handler", forks_in_a_handler},
    {"forks_in_a_handler_beside_an_epoll", forks_in_a_handler_beside_an_epoll},
    {"main_thread_ends_first", main_thread_ends_first},
    {"main_thread_ends_before_a_gate_closes", main_thread_ends_before_a_gate_closes},
    {"main_thread_sends_as_it_ends", main_thread_sends_as_it_ends},
};
