// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/table.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "alcc/gate/process.hpp"

namespace reinet::alcc {

void Table::store(int fd, std::uintptr_t value) {
  const auto i = static_cast<std::size_t>(fd);
  if (fd < 0 || i >= kFdsPerChunk * kFdChunks) return;
  std::atomic<FdChunk*>& place = fd_chunks_[i / kFdsPerChunk];
  FdChunk* chunk = place.load(std::memory_order_acquire);
  if (!chunk) {
    if (value == kUnknown) return;
    // From the kernel, not from malloc: a signal's handler may be the first to write into a descriptor.
    void* memory = mmap(nullptr, sizeof(FdChunk), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    auto* made = static_cast<FdChunk*>(memory);
    if (place.compare_exchange_strong(chunk, made))
      chunk = made;
    else
      munmap(memory, sizeof(FdChunk));
  }
  (*chunk)[i % kFdsPerChunk].store(value, std::memory_order_release);
  int highest = highest_fd_.load(std::memory_order_relaxed);
  while (fd > highest && !highest_fd_.compare_exchange_weak(highest, fd)) {}
}

Flow* Table::find_or_make(std::uint64_t cookie) {
  if (const auto found = by_cookie_.find(cookie); found != by_cookie_.end()) return found->second;
  if (free_flows_.empty()) {
    const std::size_t used = chunks_used_.load(std::memory_order_relaxed);
    if (used == kFlowChunks) return nullptr;
    free_flows_.reserve(kFlowsPerChunk);
    flow_chunks_[used] = new FlowChunk;
    for (Flow& flow : *flow_chunks_[used]) free_flows_.push_back(&flow);
    chunks_used_.store(used + 1, std::memory_order_release);
  }
  Flow* flow = free_flows_.back();
  by_cookie_.emplace(cookie, flow);
  free_flows_.pop_back();
  return flow;
}

Flow* Table::flow(int fd) {
  const std::uintptr_t slot = load(fd);
  if (slot != kUnknown) return flow_in(slot);
  if (!process().is_here()) return nullptr;  // what is said here is another's, and so are the locks that it takes
  if (!is_tcp(fd)) {
    if (is_multipath(fd)) process().report.exempted("it may use several paths (MPTCP)");
    if (fcntl(fd, F_GETFD) >= 0) store(fd, kForeign);
    return nullptr;
  }
  const std::uint64_t cookie = cookie_of(fd);
  if (cookie == 0) return nullptr;
  Flow* flow;
  {
    const std::lock_guard guard(lock_);
    flow = if_memory_lasts([&] { return find_or_make(cookie); }).value_or(nullptr);
  }
  if (!flow) return nullptr;
  const std::lock_guard guard(flow->lock);
  if (flow->cookie != cookie) {
    const std::lock_guard own(lock_);
    const auto found = by_cookie_.find(cookie);
    if (flow->cookie != 0 || found == by_cookie_.end() || found->second != flow) return nullptr;  // it ended meanwhile
    flow->reset(cookie);
  }
  if (!std::ranges::count(flow->fds, fd)) flow->fds.push_back(fd);
  store(fd, reinterpret_cast<std::uintptr_t>(flow));
  return flow;
}

Flow* Table::verified_flow(int fd) {
  if (Flow* known = known_flow(fd)) {
    std::unique_lock guard(known->lock);
    if (known->cookie == cookie_of(fd)) return known;
    guard.unlock();
    close(fd);
  }
  return flow(fd);
}

void Table::forget(int fd, const Flow* flow) {
  if (load(fd) == reinterpret_cast<std::uintptr_t>(flow)) store(fd, kUnknown);
}

void Table::close(int fd) {
  const std::uintptr_t slot = load(fd);
  if (slot == kUnknown) return;
  if (Epoll* epoll = epoll_in(slot)) {
    store(fd, kUnknown);
    const std::lock_guard guard(lock_);
    std::erase(epoll->fds, fd);
    if (!epoll->fds.empty()) return;
    ++epoll->generation;
    free_epolls_.push_back(epoll);
    return;
  }
  Flow* flow = flow_in(slot);
  if (!flow) {
    store(fd, kUnknown);
    return;
  }
  const std::lock_guard guard(flow->lock);
  if (load(fd) != slot) return;
  store(fd, kUnknown);
  std::erase(flow->fds, fd);
  const bool watched = flow->registrations.has(fd);
  if (watched) flow->open();  // another process may share the epoll
  if (watched && !flow->fds.empty()) {
    // The registration outlives this descriptor and cannot be changed any more.
    flow->exempt("a descriptor that epoll watches was closed while a duplicate lives");
  }
  flow->registrations.forget(fd);
  if (flow->fds.empty()) release(flow);
}

void Table::duplicate(int fd, int copy) {
  if (fd == copy) return;
  const std::uintptr_t slot = load(fd);
  store(copy, kUnknown);
  if (Epoll* epoll = epoll_in(slot)) {
    const std::lock_guard guard(lock_);
    epoll->fds.push_back(copy);
    store(copy, slot);
  } else if (flow_in(slot)) {
    flow(copy);
  }
}

void Table::release(Flow* flow) {
  if (flow->cookie == 0) return;
  const std::uint64_t cookie = flow->cookie;
  flow->reset(0);
  const std::lock_guard guard(lock_);
  by_cookie_.erase(cookie);
  if_memory_lasts([&] { return &free_flows_.emplace_back(flow); });  // else nobody uses it again
}

Epoll* Table::epoll(int fd) {
  if (Epoll* epoll = epoll_in(load(fd))) return epoll;
  const std::lock_guard guard(lock_);
  Epoll* epoll = epoll_in(load(fd));  // another thread may have registered meanwhile: two would not close together
  if (epoll) return epoll;
  if (free_epolls_.empty()) {
    epoll = epolls_.emplace_back(std::make_unique<Epoll>()).get();
  } else {
    epoll = free_epolls_.back();
    free_epolls_.pop_back();
  }
  epoll->fds.assign(1, fd);
  store(fd, reinterpret_cast<std::uintptr_t>(epoll) | kEpoll);
  return epoll;
}

int Table::fd_of(const Epoll* epoll, std::uint32_t generation) {
  const std::lock_guard guard(lock_);
  return epoll->generation == generation && !epoll->fds.empty() ? epoll->fds.front() : -1;
}

}  // namespace reinet::alcc

// For tests: how many connections the gate of this process knows.
extern "C" [[gnu::visibility("default")]] std::size_t reinet_alcc_flows() {
  return reinet::alcc::process().table.flows();
}
