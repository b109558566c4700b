// SPDX-License-Identifier: Apache-2.0
//
// reinet-sender --cc NAME [--cgroup DIR] [--flows N] [--bytes N]
//
// Runs outside the shells. Joins the cgroup before it makes a socket, listens, gives up its rights, accepts FLOWS
// receivers and sends each the pattern: BYTES of it and then a FIN, or without end (the default). It ends when all
// flows have ended, or at once when its standard input ends or says anything; unfinished flows are then reset, so that
// nothing is left to drain. JSON lines on standard output:
//   listening  port
//   flow       cookie (names the flow to the shim), cc, port (of the peer)
//   sending    time_ns (CLOCK_MONOTONIC, all flows are up)
//   closed     cookie, sent_bytes (taken by the socket), acked_bytes, retrans_pkts, finished
//   end        time_ns (when sending stopped), cpu_us (what the sender used until then, in the kernel and outside)

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <linux/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "pattern.h"
#include "user.h"

#define MAX_FLOWS 256
#define ACCEPT_MS 60000  // as who started it waits (START_TIMEOUT_S): a busy host takes more than 20 s now and then

struct flow {
  uint64_t cookie, sent_bytes;
  int finished;  // all bytes sent and FIN queued
};

static struct flow flows[MAX_FLOWS];
static struct pollfd sockets[MAX_FLOWS + 1];  // the last one in use is standard input

static void fail(const char *format, ...) {
  const char *why = strerror(errno);
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "reinet-sender: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, ": %s\n", why);
  va_end(arguments);
  exit(1);
}

static long long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void join_cgroup(const char *cgroup) {
  char path[4096];
  snprintf(path, sizeof path, "%s/cgroup.procs", cgroup);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "0", 1) != 1)
    fail("cannot join cgroup %s", cgroup);
  close(fd);
}

static int listen_with(const char *cc, int count) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
  socklen_t size = sizeof address;
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0 || setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)))
    fail("congestion control %s", cc);
  if (bind(s, (struct sockaddr *)&address, sizeof address) || listen(s, count) ||
      getsockname(s, (struct sockaddr *)&address, &size))
    fail("cannot listen");
  if (setgroups(0, NULL) || setresgid(LINK_USER, LINK_USER, LINK_USER) || setresuid(LINK_USER, LINK_USER, LINK_USER))
    fail("cannot give up root's rights");
  printf("{\"event\": \"listening\", \"port\": %d}\n", ntohs(address.sin_port));
  return s;
}

static void accept_flow(int listener, int i) {
  struct pollfd ready[] = {{listener, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  const struct linger reset = {1, 0};
  struct sockaddr_in peer;
  socklen_t size = sizeof peer, cookie_size = sizeof flows[i].cookie;
  char cc[16] = "";
  socklen_t cc_size = sizeof cc - 1;
  if (poll(ready, 2, ACCEPT_MS) <= 0 || ready[1].revents) {
    errno = ETIMEDOUT;
    fail("no receiver connected (flow %d)", i);
  }
  int s = accept4(listener, (struct sockaddr *)&peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (s < 0 || getsockopt(s, SOL_SOCKET, SO_COOKIE, &flows[i].cookie, &cookie_size) ||
      getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, cc, &cc_size))
    fail("cannot accept flow %d", i);
  // However this process ends, the socket goes at once: left to retransmit into a link that is gone, it would keep the
  // network namespace and the congestion control that it runs alive for minutes.
  if (setsockopt(s, SOL_SOCKET, SO_LINGER, &reset, sizeof reset))
    fail("cannot set up flow %d", i);
  sockets[i] = (struct pollfd){s, POLLOUT, 0};
  printf("{\"event\": \"flow\", \"cookie\": %llu, \"cc\": \"%s\", \"port\": %d}\n", (unsigned long long)flows[i].cookie,
         cc, ntohs(peer.sin_port));
}

static void close_flow(int i) {
  struct tcp_info info = {0};
  socklen_t size = sizeof info;
  int s = sockets[i].fd;
  getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &size);
  printf(
      "{\"event\": \"closed\", \"cookie\": %llu, \"sent_bytes\": %llu, \"acked_bytes\": %llu, \"retrans_pkts\": %u, "
      "\"finished\": %s}\n",
      (unsigned long long)flows[i].cookie, (unsigned long long)flows[i].sent_bytes,
      (unsigned long long)info.tcpi_bytes_acked, info.tcpi_total_retrans, flows[i].finished ? "true" : "false");
  close(s);
  sockets[i].fd = -1;
}

// Sends what the socket takes now; limit_bytes = 0 is no limit. Returns 0 when the flow has ended.
static int advance(int i, uint64_t limit_bytes) {
  struct flow *flow = &flows[i];
  char unused;
  if (sockets[i].revents & (POLLERR | POLLHUP))
    return 0;
  if (flow->finished)  // the peer answers the FIN with its own when it has read everything
    return !(sockets[i].revents & POLLIN) || recv(sockets[i].fd, &unused, 1, MSG_DONTWAIT) > 0;
  size_t want = PATTERN_BYTES;
  if (limit_bytes && limit_bytes - flow->sent_bytes < want)
    want = (size_t)(limit_bytes - flow->sent_bytes);
  ssize_t n = send(sockets[i].fd, pattern() + flow->sent_bytes % PATTERN_BYTES, want, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0)
    return errno == EAGAIN || errno == EINTR;
  flow->sent_bytes += (uint64_t)n;
  if (limit_bytes && flow->sent_bytes == limit_bytes) {
    shutdown(sockets[i].fd, SHUT_WR);
    flow->finished = 1;
    sockets[i].events = POLLIN;
  }
  return 1;
}

static long long cpu_us(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000LL + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

int main(int argc, char **argv) {
  static const struct option options[] = {{"cc", required_argument, NULL, 'c'},
                                          {"cgroup", required_argument, NULL, 'g'},
                                          {"flows", required_argument, NULL, 'n'},
                                          {"bytes", required_argument, NULL, 'b'},
                                          {NULL, 0, NULL, 0}};
  const char *cc = NULL, *cgroup = NULL;
  uint64_t limit_bytes = 0;
  int count = 1;
  for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    if (option == 'c')
      cc = optarg;
    else if (option == 'g')
      cgroup = optarg;
    else if (option == 'n')
      count = atoi(optarg);
    else if (option == 'b')
      limit_bytes = strtoull(optarg, NULL, 10);
    else
      return 2;
  }
  if (!cc || count < 1 || count > MAX_FLOWS || optind != argc) {
    fprintf(stderr, "usage: reinet-sender --cc NAME [--cgroup DIR] [--flows N] [--bytes N]\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (cgroup)
    join_cgroup(cgroup);
  int listener = listen_with(cc, count);
  for (int i = 0; i < count; i++)
    accept_flow(listener, i);
  close(listener);
  printf("{\"event\": \"sending\", \"time_ns\": %lld}\n", now_ns());
  sockets[count] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
  for (int open = count; open && !sockets[count].revents;) {
    if (poll(sockets, (nfds_t)count + 1, -1) < 0 && errno != EINTR)
      fail("poll");
    for (int i = 0; i < count; i++)
      if (sockets[i].fd >= 0 && sockets[i].revents && !advance(i, limit_bytes)) {
        close_flow(i);
        open--;
      }
  }
  long long end_ns = now_ns(), used_us = cpu_us();
  for (int i = 0; i < count; i++)
    if (sockets[i].fd >= 0)
      close_flow(i);
  printf("{\"event\": \"end\", \"time_ns\": %lld, \"cpu_us\": %lld}\n", end_ns, used_us);
  return 0;
}
