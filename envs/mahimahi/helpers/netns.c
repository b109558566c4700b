// SPDX-License-Identifier: Apache-2.0
//
// reinet-netns PARENT_PID IPTABLES XTABLES CGROUP HELPER...
//
// Makes network, mount and PID namespaces in which Mahimahi runs, and changes nothing outside them. Two processes:
//
//   supervisor (host)   makes CGROUP ("-" = none), starts init, and when init or the parent ends: kills what is left,
//                       removes CGROUP. The parent is watched through a pidfd, so kill -9 on it ends all of this too.
//                       Meanwhile the host's processors wait for work without halting.
//   init (PID 1 inside) owns the namespaces. When it ends, however it ends, the kernel kills every process inside and
//                       frees mounts, devices, addresses and NAT rules. It reads commands from standard input (end of
//                       file = quit) and serves /run/reinet/gate.sock: whoever connects gets IPv4 forwarding switched
//                       on in the network namespace it lives in, because a namespace that mm-delay makes starts with
//                       the host's setting and a nested mm-link refuses to run without it.
//
// Inside, /run is a private tmpfs; each HELPER is copied to /run/reinet/bin, where users without access to the original
// can run it; /run/reinet/traces is root's, for what is read inside; /run/reinet/user belongs to the link's user
// (user.h), for the log that mm-link writes without root's rights; IPTABLES (the file that iptables resolves to) is
// covered by the helper reinet-iptables, which runs XTABLES, bound to /run/reinet/xtables because the two may be one
// file.
// Commands: "fresh" kills all other processes inside and starts from a new network namespace.
// Events are JSON lines on standard output: namespaces (init's host pid), ready, fresh, error.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "user.h"

#define GATE "/run/reinet/gate.sock"

// Messages are made of this program's own texts, paths and strerror: nothing in them needs JSON escapes except the
// paths, whose quotes and backslashes are replaced.
static void fail(const char *format, ...) {
  const char *why = strerror(errno);
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  for (char *c = message; *c; c++)
    if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
      *c = '?';
  dprintf(STDOUT_FILENO, "{\"event\": \"error\", \"message\": \"%s: %s\"}\n", message, why);
  _exit(1);
}

static void write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) < 0)
    fail("cannot write %s", path);
  close(fd);
}

static void copy_helper(const char *from) {
  const char *name = strrchr(from, '/');
  char to[256], buffer[65536];
  snprintf(to, sizeof to, "/run/reinet/bin/%s", name ? name + 1 : from);
  int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
  if (in < 0 || out < 0)
    fail("cannot copy %s to %s", from, to);
  for (ssize_t n; (n = read(in, buffer, sizeof buffer)) != 0;)
    if (n < 0 || write(out, buffer, (size_t)n) != n)
      fail("cannot copy %s to %s", from, to);
  fchmod(out, 0755);
  close(in);
  close(out);
}

static void enter_fresh_network(void) {
  struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
  if (unshare(CLONE_NEWNET))
    fail("cannot make a network namespace");
  int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (s < 0 || ioctl(s, SIOCSIFFLAGS, &loopback))
    fail("cannot bring lo up");
  close(s);
  write_text("/proc/sys/net/ipv4/ip_forward", "1");
}

static void make_mounts(const char *iptables, const char *xtables, char **helpers) {
  if (unshare(CLONE_NEWNS))
    fail("cannot make a mount namespace");
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
    fail("cannot make mounts private");
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
    fail("cannot mount /proc");
  if (mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"))
    fail("cannot mount a private /run");
  umask(022);
  if (mkdir("/run/reinet", 0755) || mkdir("/run/reinet/bin", 0755) || mkdir("/run/reinet/traces", 0755) ||
      mkdir("/run/reinet/user", 0755) || chown("/run/reinet/user", LINK_USER, LINK_USER))
    fail("cannot make /run/reinet");
  for (; *helpers; helpers++)
    copy_helper(*helpers);
  int target = open("/run/reinet/xtables", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
  if (target < 0 || mount(xtables, "/run/reinet/xtables", NULL, MS_BIND, NULL))
    fail("cannot bind %s", xtables);
  close(target);
  if (mount("/run/reinet/bin/reinet-iptables", iptables, NULL, MS_BIND, NULL))
    fail("cannot cover %s", iptables);
}

static int listen_at_gate(void) {
  struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = GATE};
  int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0 || bind(s, (struct sockaddr *)&address, sizeof address) || chmod(GATE, 0666) || listen(s, 8))
    fail("cannot listen at " GATE);
  return s;
}

// Switches forwarding on where the peer lives. A peer that is gone by then is no error of ours.
static void serve_gate(int gate) {
  int peer = accept4(gate, NULL, NULL, SOCK_CLOEXEC);
  struct ucred who;
  socklen_t size = sizeof who;
  if (peer < 0)
    return;
  if (!getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size)) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", who.pid);
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), theirs = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0)
      fail("cannot open own network namespace");
    if (theirs >= 0 && !setns(theirs, CLONE_NEWNET)) {
      int knob = open("/proc/sys/net/ipv4/ip_forward", O_WRONLY | O_CLOEXEC);
      if (knob >= 0 && write(knob, "1", 1) == 1)
        send(peer, "1", 1, MSG_NOSIGNAL);
      close(knob);
      if (setns(own, CLONE_NEWNET))
        fail("cannot return to own network namespace");
    }
    close(theirs);
    close(own);
  }
  close(peer);
}

static void reap(void) {
  while (waitpid(-1, NULL, WNOHANG) > 0)
    ;
}

static void remove_user_files(void) {
  DIR *folder = opendir("/run/reinet/user");
  if (!folder)
    return;
  for (struct dirent *entry; (entry = readdir(folder));)
    unlinkat(dirfd(folder), entry->d_name, 0);
  closedir(folder);
}

static void start_afresh(void) {
  struct timespec pause = {.tv_nsec = 1000000};
  kill(-1, SIGKILL);  // in a PID namespace: everything inside but init itself
  // Processes that entered from outside are not our children: ESRCH tells when the last one is gone.
  for (int i = 0; i < 5000 && !kill(-1, 0); i++) {
    reap();
    nanosleep(&pause, NULL);
  }
  remove_user_files();
  enter_fresh_network();
  dprintf(STDOUT_FILENO, "{\"event\": \"fresh\"}\n");
}

static void run_init(const char *iptables, const char *xtables, char **helpers, int signals) {
  char line[64];
  size_t used = 0;
  make_mounts(iptables, xtables, helpers);
  enter_fresh_network();
  int gate = listen_at_gate();
  dprintf(STDOUT_FILENO, "{\"event\": \"ready\"}\n");
  for (;;) {
    struct pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {gate, POLLIN, 0}, {signals, POLLIN, 0}};
    if (poll(ready, 3, -1) < 0 && errno != EINTR)
      fail("poll");
    if (ready[2].revents) {
      struct signalfd_siginfo signal;
      if (read(signals, &signal, sizeof signal) < 0)
        fail("signalfd");
      reap();
    }
    if (ready[1].revents)
      serve_gate(gate);
    if (ready[0].revents) {
      ssize_t n = read(STDIN_FILENO, line + used, sizeof line - 1 - used);
      if (n <= 0)
        _exit(0);
      used += (size_t)n;
      line[used] = 0;
      for (char *end; (end = strchr(line, '\n'));) {
        *end = 0;
        if (!strcmp(line, "fresh"))
          start_afresh();
        else
          _exit(0);
        used -= (size_t)(end + 1 - line);
        memmove(line, end + 1, used + 1);
      }
      if (used == sizeof line - 1)
        _exit(1);
    }
  }
}

// A processor that has halted for want of work may need milliseconds to wake, above all a virtual one, which its host
// has to schedule again, and then the emulator is late. As long as this file is open with a latency of 0 in it, the
// kernel polls for work instead (Documentation/power/pm_qos_interface.rst). Where it is missing, as in most containers,
// the processors halt as before; the sleeper says whether that did harm.
static void keep_processors_awake(void) {
  const int32_t latency_us = 0;
  int fd = open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
  if (fd >= 0 && write(fd, &latency_us, sizeof latency_us) < 0)
    close(fd);
}

static void remove_cgroup(const char *cgroup) {
  struct timespec pause = {.tv_nsec = 10000000};
  for (int i = 0; i < 300 && rmdir(cgroup) && errno == EBUSY; i++)  // killed processes leave a cgroup a little later
    nanosleep(&pause, NULL);
}

int main(int argc, char **argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: reinet-netns PARENT_PID IPTABLES XTABLES CGROUP|- HELPER...\n");
    return 2;
  }
  pid_t parent = (pid_t)atoi(argv[1]);
  const char *cgroup = strcmp(argv[4], "-") ? argv[4] : NULL;
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGCHLD);
  sigaddset(&handled, SIGINT);
  sigaddset(&handled, SIGTERM);
  sigaddset(&handled, SIGHUP);
  sigprocmask(SIG_BLOCK, &handled, NULL);
  signal(SIGPIPE, SIG_IGN);

  int parent_fd = (int)syscall(SYS_pidfd_open, parent, 0);
  if (parent_fd < 0 || getppid() != parent)
    fail("parent %d is gone", parent);
  if (cgroup && mkdir(cgroup, 0755))
    fail("cannot make cgroup %s", cgroup);
  if (unshare(CLONE_NEWPID)) {
    if (cgroup)
      rmdir(cgroup);
    fail("cannot make a PID namespace");
  }
  int signals = signalfd(-1, &handled, SFD_CLOEXEC);
  pid_t init = fork();
  if (init == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // the supervisor has one thread, so this means its death and nothing else
    run_init(argv[2], argv[3], argv + 5, signals);
  }
  if (init < 0)
    printf("{\"event\": \"error\", \"message\": \"cannot fork: %s\"}\n", strerror(errno));
  else
    printf("{\"event\": \"namespaces\", \"pid\": %d}\n", init);
  fflush(stdout);
  close(STDIN_FILENO);
  keep_processors_awake();  // here, so that init does not inherit it: it ends with this process
  while (init > 0) {
    struct pollfd ready[] = {{parent_fd, POLLIN, 0}, {signals, POLLIN, 0}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR)
      break;
    struct signalfd_siginfo received;
    if (ready[1].revents && read(signals, &received, sizeof received) > 0 && received.ssi_signo == SIGCHLD) {
      if (waitpid(init, NULL, WNOHANG) == init)
        break;
      continue;
    }
    if (ready[0].revents || ready[1].revents) {
      kill(init, SIGKILL);
      waitpid(init, NULL, 0);  // returns once the kernel has ended everything inside
      break;
    }
  }
  if (cgroup)
    remove_cgroup(cgroup);
  return 0;
}
