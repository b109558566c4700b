// SPDX-License-Identifier: Apache-2.0
//
// reinet-sleeper
//
// Reads one byte to begin, sleeps 1 ms at a time until its standard input ends, then says how late it woke: what a busy
// host did to this process it did to the emulator beside it. A program of its own, so that no interpreter lock counts
// as lateness.

#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define SLEEP_NS 1000000

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(void) {
  long long wakes = 0, late = 0, max_late_ns = 0;
  struct pollfd input = {STDIN_FILENO, POLLIN, 0};
  struct timespec pause = {.tv_nsec = SLEEP_NS};
  char begin;
  printf("{\"event\": \"awake\"}\n");
  fflush(stdout);
  if (read(STDIN_FILENO, &begin, 1) != 1)
    return 0;
  do {
    int64_t due_ns = now_ns() + SLEEP_NS;
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    int64_t late_ns = now_ns() - due_ns;
    wakes++;
    late += late_ns > 5000000;
    if (late_ns > max_late_ns)
      max_late_ns = late_ns;
  } while (poll(&input, 1, 0) == 0);
  printf("{\"event\": \"sleeper\", \"wakes\": %lld, \"late_5ms\": %lld, \"max_late_us\": %lld}\n", wakes, late,
         max_late_ns / 1000);
  return 0;
}
