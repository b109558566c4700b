// SPDX-License-Identifier: Apache-2.0
//
// Which descriptor is what. A slot per descriptor says so without a lock: unknown, nothing of ours, a flow, or an
// epoll. Sockets are known by their cookie (SO_COOKIE), so that a descriptor used again, duplicated or inherited finds
// the right flow or none. Locks: a flow's, then this table's; never the other way round.
#ifndef REINET_ALCC_TABLE_HPP
#define REINET_ALCC_TABLE_HPP

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "alcc/base/lock.hpp"
#include "alcc/gate/flow.hpp"

namespace reinet::alcc {

// An epoll instance, by whichever descriptors; type-stable like flows.
struct Epoll {
  std::vector<int> fds;
  std::atomic<std::uint32_t> generation{0};  // moves when the last descriptor closes; read without the table's lock too
};

class Table {
 public:
  // Returns the flow that a descriptor is, made if it is a TCP socket not seen before; null = not ours. None is made in
  // a child of vfork() or clone().
  Flow* flow(int fd);
  // The same, where a connection that was closed past the C library may have had the number before.
  Flow* verified_flow(int fd);
  // The same, but only what is known already.
  Flow* known_flow(int fd) const { return flow_in(load(fd)); }
  // Whether there is anything to forget when it is closed.
  bool is_known(int fd) const { return load(fd) != kUnknown; }
  // The caller holds the flow's lock and found that the socket is not this descriptor's: the slot is unknown again.
  void forget(int fd, const Flow* flow);
  // A descriptor is about to be closed, or was made by the kernel just now.
  void close(int fd);
  // copy is now the same file as fd.
  void duplicate(int fd, int copy);
  // The caller holds the flow's lock; nobody has the socket open any more.
  void release(Flow* flow);

  Epoll* epoll(int fd);
  bool is_epoll(int fd) const { return epoll_in(load(fd)); }
  int fd_of(const Epoll* epoll, std::uint32_t generation);

  // Visits every flow of the first so many chunks; there are chunks() at present, and never fewer later.
  template <class Visit>
  void each_flow(std::size_t chunks, Visit&& visit) {
    for (std::size_t i = 0; i < chunks; ++i)
      for (Flow& flow : *flow_chunks_[i]) visit(flow);
  }
  std::size_t chunks() const { return chunks_used_.load(std::memory_order_acquire); }
  // Around fork: its own lock.
  void lock_all() { lock_.lock(); }
  void unlock_all() { lock_.unlock(); }
  // How many connections are known.
  std::size_t flows() {
    const std::lock_guard guard(lock_);
    return by_cookie_.size();
  }
  int highest_fd() const { return highest_fd_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uintptr_t kUnknown = 0, kFlow = 0, kForeign = 1, kEpoll = 2, kTag = 3;
  static constexpr std::size_t kFdsPerChunk = 4096, kFdChunks = 1024;  // 4 million descriptors
  static constexpr std::size_t kFlowsPerChunk = 64, kFlowChunks = 1 << 14;

  using FdChunk = std::array<std::atomic<std::uintptr_t>, kFdsPerChunk>;
  using FlowChunk = std::array<Flow, kFlowsPerChunk>;

  static Flow* flow_in(std::uintptr_t slot) {
    return slot != kUnknown && (slot & kTag) == kFlow ? reinterpret_cast<Flow*>(slot) : nullptr;
  }
  static Epoll* epoll_in(std::uintptr_t slot) {
    return (slot & kTag) == kEpoll ? reinterpret_cast<Epoll*>(slot & ~kTag) : nullptr;
  }
  std::uintptr_t load(int fd) const {
    const auto i = static_cast<std::size_t>(fd);
    if (fd < 0 || i >= kFdsPerChunk * kFdChunks) return kForeign;
    const FdChunk* chunk = fd_chunks_[i / kFdsPerChunk].load(std::memory_order_acquire);
    return chunk ? (*chunk)[i % kFdsPerChunk].load(std::memory_order_acquire) : kUnknown;
  }
  void store(int fd, std::uintptr_t value);
  Flow* find_or_make(std::uint64_t cookie);  // under lock_

  std::array<std::atomic<FdChunk*>, kFdChunks> fd_chunks_{};
  std::atomic<int> highest_fd_{-1};
  Lock lock_;  // guards the rest
  std::array<FlowChunk*, kFlowChunks> flow_chunks_{};
  std::atomic<std::size_t> chunks_used_{0};
  std::vector<Flow*> free_flows_;
  std::vector<std::unique_ptr<Epoll>> epolls_;  // whoever looks for leaks does not look into fd_chunks_
  std::vector<Epoll*> free_epolls_;
  std::unordered_map<std::uint64_t, Flow*> by_cookie_;
};

}  // namespace reinet::alcc

#endif
