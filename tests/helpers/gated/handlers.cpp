// SPDX-License-Identifier: Apache-2.0
//
// A library with HANDLERS, which has a lock taken around fork() from before main() on, or with NAMES, whose name
// service is far away; without them a program whose one thread writes while it holds that lock, as the other one forks.
#include <grp.h>
#include <pthread.h>
#include <unistd.h>

#ifdef HANDLERS
pthread_mutex_t lock_of_library = PTHREAD_MUTEX_INITIALIZER;

namespace {

void take() { pthread_mutex_lock(&lock_of_library); }
void give() { pthread_mutex_unlock(&lock_of_library); }

[[gnu::constructor]] void begin() { pthread_atfork(take, give, give); }

}  // namespace
#elif defined NAMES
extern "C" int initgroups(const char*, gid_t) noexcept { return static_cast<int>(sleep(2)); }

extern "C" int getgrouplist(const char*, gid_t group, gid_t* groups, int* count) noexcept {
  sleep(2);
  *groups = group;
  return *count = 1;
}
#else
#include <sys/wait.h>

#include "connections.hpp"

extern pthread_mutex_t lock_of_library;

int main() {
  alarm(60);
  const Pair p = pair();
  started([=] { read_for(p.peer, 10'000); });
  started([=] {
    while (true) {
      pthread_mutex_lock(&lock_of_library);
      (void)!write(p.sender, block.data(), 1);
      pthread_mutex_unlock(&lock_of_library);
      usleep(100);  // who waits for the lock gets it: without this, only where the scheduler stops this thread here
    }
  });
  for (int i = 0; i < 300; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, nullptr, 0);
  }
  std::puts("forks 300");
  std::fflush(stdout);
  _exit(0);
}
#endif
