// SPDX-License-Identifier: Apache-2.0
//
// Covers the file that iptables resolves to, inside a link's namespaces only. Mahimahi 0.98 is setuid root and runs
// iptables with the user's real uid; iptables 1.8.8 and later refuses that (exit 111). This takes on root fully, drops
// the caller's environment and runs the original under a path that only root can write. It is not setuid itself: called
// by a user it fails.

#define _GNU_SOURCE
#include <grp.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#define XTABLES "/run/reinet/xtables"

int main(int argc, char **argv) {
  // The lock lies in the namespaces' own /run, not in the host's.
  char *environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "XTABLES_LOCKFILE=/run/reinet/xtables.lock", NULL};
  if (argc < 1 || setresgid(0, 0, 0) || setgroups(0, NULL) || setresuid(0, 0, 0)) {
    perror("reinet-iptables: cannot become root");
    return 111;
  }
  argv[0] = "iptables";
  execve(XTABLES, argv, environment);
  perror("reinet-iptables: cannot run " XTABLES);
  return 127;
}
