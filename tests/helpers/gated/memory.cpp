// SPDX-License-Identifier: Apache-2.0
//
// Cases of memory: how much address space a gate takes, and the program's malloc, interrupted or with nothing left.
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "connections.hpp"

namespace {

unsigned long address_space_bytes() {
  unsigned long pages = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file || std::fscanf(file, "%lu", &pages) != 1) std::exit(3);
  std::fclose(file);
  return pages * static_cast<unsigned long>(sysconf(_SC_PAGESIZE));
}

void address_space() {
  const Pair p = pair(kSmallBufferBytes);
  const unsigned long before = address_space_bytes();
  fill(p.sender);
  read_for(p.peer, 50);
  fill(p.sender);
  std::printf("held %lu\n", address_space_bytes() - before);
}

// A handler that interrupts malloc() writes, each time into a connection that nothing was written into before.
std::vector<Pair> unused;
volatile sig_atomic_t written = 0;

void handler_within_malloc() {
  alarm(60);
  const Pair first = pair();
  (void)!write(first.sender, "a", 1);  // from now on there are two threads, and malloc() takes locks
  for (int i = 0; i < 200; ++i) unused.push_back(pair());
  struct sigaction writing{};
  writing.sa_handler = [](int) {
    if (written < 200) (void)!write(unused[static_cast<std::size_t>(written++)].sender, "a", 1);
  };
  sigaction(SIGPROF, &writing, nullptr);
  const itimerval often{{0, 1000}, {0, 1000}};
  setitimer(ITIMER_PROF, &often, nullptr);
  void* held[64] = {};
  for (std::size_t i = 0; written < 200; ++i) {
    std::free(held[i % 64]);
    held[i % 64] = std::malloc(2000 + i % 4000);
  }
  setitimer(ITIMER_PROF, nullptr, nullptr);
  std::printf("written 200\n");
}

void no_memory_left() {
  std::printf("begins\n");
  const Pair p = pair();
  const rlimit all{address_space_bytes(), RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &all);
  for (std::size_t bytes = 1 << 20; bytes >= 16; bytes /= 2)
    while (std::malloc(bytes)) {}
  std::printf("wrote %zd\n", write(p.sender, block.data(), 1000));
  std::printf("got %ld\n", read_for(p.peer, 10));
}

}  // namespace

const Cases kMemoryCases{
    {"address_space", address_space},
    {"handler_within_malloc", handler_within_malloc},
    {"no_memory_left", no_memory_left},
};
