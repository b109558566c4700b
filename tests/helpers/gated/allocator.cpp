// SPDX-License-Identifier: Apache-2.0
//
// An allocator to preload that makes a system call by its number in each call of its own, as jemalloc does in the
// first: also while the gate is being made, and while the gate holds its locks. It gives nothing back.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t kBytes = std::size_t{1} << 32, kHeaderBytes = 16;
constexpr int kNobodys = 9999;
std::atomic<char*> memory{nullptr};
std::atomic<std::size_t> used{0};

#ifdef FORKS
// A lock that is taken around fork(), as jemalloc's, for as long as a busy host may stop whoever forks.
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void take() {
  pthread_mutex_lock(&lock);
  usleep(20'000);
}
void give() { pthread_mutex_unlock(&lock); }

[[gnu::constructor]] void begin() { pthread_atfork(take, give, give); }
#endif

void* taken(std::size_t size, std::size_t alignment) {
#ifdef FORKS
  pthread_mutex_lock(&lock);
  pthread_mutex_unlock(&lock);
#endif
  const int error = errno;
  syscall(SYS_close, kNobodys);
  errno = error;
  if (!memory) {
    void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char* none = nullptr;
    if (mapped == MAP_FAILED || !memory.compare_exchange_strong(none, static_cast<char*>(mapped))) std::abort();
  }
  const std::size_t room = (kHeaderBytes + size + 2 * alignment) / alignment * alignment;
  const std::size_t at = (used.fetch_add(room) + kHeaderBytes + alignment - 1) / alignment * alignment;
  char* found = memory + at;
  std::memcpy(found - kHeaderBytes, &size, sizeof size);
  return found;
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) { return taken(size, kHeaderBytes); }
void* calloc(std::size_t count, std::size_t size) { return taken(count * size, kHeaderBytes); }
void* memalign(std::size_t alignment, std::size_t size) { return taken(size, alignment); }
void* aligned_alloc(std::size_t alignment, std::size_t size) { return taken(size, alignment); }
int posix_memalign(void** found, std::size_t alignment, std::size_t size) {
  *found = taken(size, alignment);
  return 0;
}
void* realloc(void* old, std::size_t size) {
  void* found = taken(size, kHeaderBytes);
  std::size_t before = 0;
  if (old) std::memcpy(&before, static_cast<char*>(old) - kHeaderBytes, sizeof before);
  if (old) std::memcpy(found, old, before < size ? before : size);
  return found;
}
void free(void*) {}
}
