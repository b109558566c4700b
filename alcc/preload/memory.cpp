// SPDX-License-Identifier: Apache-2.0
//
// The gate's own memory: what its C++ makes comes from the kernel, not from the program's malloc. glibc's gives each
// thread an arena of its own, 64 MB of address space for the gate's thread, which a program under `ulimit -v` then
// lacks for stacks of its own. A write from a handler that interrupted malloc() would wait for itself there, too.
#include <sys/mman.h>

#include <cstddef>
#include <memory_resource>
#include <mutex>
#include <new>
#include <utility>

#include "alcc/base/lock.hpp"
#include "alcc/gate/process.hpp"

namespace {

constexpr std::size_t kSlabBytes = 128 * 1024;
constexpr std::size_t kLargeBytes = 32 * 1024;  // and more are the kernel's own pages, and go back to it
// What is left where the kernel has no more: all that the gate makes until the process is not gated any more.
constexpr std::size_t kSpareBytes = 256 * 1024;
// Before what is handed out, its size stands.
constexpr std::size_t kHeadBytes = alignof(std::max_align_t);

class Pages final : public std::pmr::memory_resource {
 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
    if (size >= kLargeBytes) {
      void* pages = map(size);
      return pages ? pages : spare(size);
    }
    if (size > left_bytes_) {
      void* slab = map(kSlabBytes);
      if (!slab) return spare(size);
      next_ = static_cast<std::byte*>(slab);
      left_bytes_ = kSlabBytes;
    }
    left_bytes_ -= size;
    return std::exchange(next_, next_ + size);
  }
  void do_deallocate(void* pages, std::size_t bytes, std::size_t alignment) override {
    const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
    if (size >= kLargeBytes && (pages < spare_ || pages >= spare_ + kSpareBytes)) munmap(pages, size);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  static void* map(std::size_t bytes) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
  }
  void* spare(std::size_t bytes) {
    if (reinet::alcc::is_made()) reinet::alcc::process().run_out_of_memory();
    if (bytes > kSpareBytes - spent_bytes_) throw std::bad_alloc();
    return spare_ + std::exchange(spent_bytes_, spent_bytes_ + bytes);
  }

  std::byte* next_ = nullptr;
  std::size_t left_bytes_ = 0, spent_bytes_ = 0;
  alignas(kHeadBytes) std::byte spare_[kSpareBytes];
};

struct Memory {
  reinet::alcc::Lock lock;
  std::pmr::unsynchronized_pool_resource pools;
};

// Never destroyed: the gate's thread goes on while the program exits.
Memory& memory() {
  alignas(Pages) static std::byte pages[sizeof(Pages)];
  alignas(Memory) static std::byte place[sizeof(Memory)];
  static Memory* const only = [] {
    auto* made = new (place) Memory{{}, {{0, kLargeBytes}, new (pages) Pages}};
    reinet::alcc::lock_of_memory = &made->lock;
    return made;
  }();
  return *only;
}

}  // namespace

void* operator new(std::size_t bytes) {
  Memory& m = memory();
  const std::lock_guard guard(m.lock);
  auto* head = static_cast<std::byte*>(m.pools.allocate(bytes + kHeadBytes, kHeadBytes));
  new (head) std::size_t(bytes);
  return head + kHeadBytes;
}

void operator delete(void* place) noexcept {
  if (!place) return;
  Memory& m = memory();
  auto* head = static_cast<std::byte*>(place) - kHeadBytes;
  const std::lock_guard guard(m.lock);
  m.pools.deallocate(head, *std::launder(reinterpret_cast<std::size_t*>(head)) + kHeadBytes, kHeadBytes);
}

void operator delete(void* place, std::size_t) noexcept { operator delete(place); }
