// SPDX-License-Identifier: Apache-2.0
//
// reinet-receiver PORT [FLOWS]
//
// Runs inside the shells: connects FLOWS times (default 1) to PORT at $MAHIMAHI_BASE, reads all there is and compares
// it with the pattern. One JSON line per flow when it ends: bytes, intact (every byte as sent), clean (ended by a FIN).

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pattern.h"

#define MAX_FLOWS 256
#define LINGER_S 10  // longer than most outages; the sender keeps retransmitting beyond it in vain

struct flow {
  uint64_t bytes;
  int intact;
};

static int connect_to(const struct sockaddr_in *address) {
  const struct linger reset = {1, 0};  // killed, it leaves no socket behind that waits for ACKs
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0 || connect(s, (const struct sockaddr *)address, sizeof *address)) {
    fprintf(stderr, "reinet-receiver: cannot connect to %s: %s\n", inet_ntoa(address->sin_addr), strerror(errno));
    exit(1);
  }
  setsockopt(s, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  return s;
}

// Returns 0 when the flow has ended.
static int drain(int s, struct flow *flow) {
  static unsigned char buffer[PATTERN_BYTES];
  const struct linger linger = {1, LINGER_S};
  ssize_t n = recv(s, buffer, sizeof buffer, MSG_DONTWAIT);
  if (n > 0) {
    if (memcmp(buffer, pattern() + flow->bytes % PATTERN_BYTES, (size_t)n))
      flow->intact = 0;
    flow->bytes += (uint64_t)n;
    return 1;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return 1;
  printf("{\"event\": \"received\", \"bytes\": %llu, \"intact\": %s, \"clean\": %s}\n", (unsigned long long)flow->bytes,
         flow->intact ? "true" : "false", n == 0 ? "true" : "false");
  fflush(stdout);
  // The shells vanish with this process: wait until the sender has acknowledged our FIN, and so has our last ACK.
  setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
  close(s);
  return 0;
}

int main(int argc, char **argv) {
  static struct flow flows[MAX_FLOWS];
  static struct pollfd sockets[MAX_FLOWS];
  struct sockaddr_in address = {.sin_family = AF_INET};
  const char *base = getenv("MAHIMAHI_BASE");
  int count = argc > 2 ? atoi(argv[2]) : 1;
  if (argc < 2 || count < 1 || count > MAX_FLOWS || !base || inet_pton(AF_INET, base, &address.sin_addr) != 1) {
    fprintf(stderr, "usage, inside a Mahimahi shell: reinet-receiver PORT [FLOWS]\n");
    return 2;
  }
  address.sin_port = htons((uint16_t)atoi(argv[1]));
  for (int i = 0; i < count; i++) {
    flows[i].intact = 1;
    sockets[i] = (struct pollfd){connect_to(&address), POLLIN, 0};
  }
  for (int open = count; open;) {
    if (poll(sockets, (nfds_t)count, -1) < 0 && errno != EINTR)
      return 1;
    for (int i = 0; i < count; i++)
      if (sockets[i].fd >= 0 && sockets[i].revents && !drain(sockets[i].fd, &flows[i])) {
        sockets[i].fd = -1;
        open--;
      }
  }
  return 0;
}
