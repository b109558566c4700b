// SPDX-License-Identifier: Apache-2.0
//
// reinet-gate PROGRAM [ARGUMENT...]
//
// Asks the link's init (netns.c) to switch IPv4 forwarding on in this network namespace, then becomes PROGRAM. It goes
// between two nested Mahimahi shells. Exit status 126 when init does not answer, 127 when PROGRAM cannot be run.

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
  struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/reinet/gate.sock"};
  char answer = 0;
  if (argc < 2) {
    fprintf(stderr, "usage: reinet-gate PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0 || connect(s, (struct sockaddr *)&address, sizeof address) || read(s, &answer, 1) != 1 || answer != '1') {
    fprintf(stderr, "reinet-gate: forwarding was not switched on: %s\n", errno ? strerror(errno) : "init refused");
    return 126;
  }
  execvp(argv[1], argv + 1);
  fprintf(stderr, "reinet-gate: cannot run %s: %s\n", argv[1], strerror(errno));
  return 127;
}
