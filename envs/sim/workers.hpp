// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_WORKERS_HPP
#define REINET_WORKERS_HPP

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace reinet {

// Counts the forks that led to this process since it was first asked: threads do not come along into a child.
inline std::uint32_t forks() {
  static std::atomic<std::uint32_t> count = 0;
  [[maybe_unused]] static const int unused = pthread_atfork(nullptr, nullptr, [] { ++count; });
  return count.load(std::memory_order_relaxed);
}

// Threads that share out the rows of a batch, the caller being one of them. Rows are independent of each other, so it
// does not matter which thread takes which; but each begins with rows of its own, the same every time, because its core
// still has them in its cache, and helps others when it is through.
class Workers {
 public:
  // Throws std::runtime_error where the host has not so many threads.
  explicit Workers(std::size_t threads) : shares_(threads) {
    try {
      for (std::size_t i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error& error) {
      end();
      throw std::runtime_error("threads: no more than " + std::to_string(threads_.size() + 1) + " of " +
                               std::to_string(threads) + " could be started (" + error.code().message() +
                               "); ask for fewer, or raise the host's limits");
    }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() {
    if (!lost()) {
      end();
      return;
    }
    // What does not exist can be neither joined nor detached: it is kept for good.
    static auto& kept = *new std::vector<std::vector<std::thread>>;
    kept.push_back(std::move(threads_));
  }

  // Returns whether this is a child of the process that started the threads: they are not here, and for_each() would
  // wait for them for ever.
  bool lost() const { return !threads_.empty() && forks_ != forks(); }

  // Calls use(row) once for each row below count, and returns when all are done. use must not throw.
  template <class Use>
  void for_each(std::size_t count, Use&& use) {
    if (threads_.empty()) {
      for (std::size_t row = 0; row < count; ++row) use(row);
      return;
    }
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      shares_[i].next = count * i / shares_.size();
      shares_[i].end = count * (i + 1) / shares_.size();
    }
    const auto take_rows = [&](std::size_t first) {
      for (std::size_t i = 0; i < shares_.size(); ++i) {
        Share& share = shares_[(first + i) % shares_.size()];
        for (std::size_t from; (from = share.next.fetch_add(kChunkRows, std::memory_order_relaxed)) < share.end;)
          for (std::size_t row = from; row < std::min(from + kChunkRows, share.end); ++row) use(row);
      }
    };
    task_ = std::ref(take_rows);
    busy_ = static_cast<std::uint32_t>(threads_.size());
    begin_round();
    take_rows(0);
    for (std::uint32_t busy; (busy = busy_) != 0;) wait_while(busy_, busy);
  }

 private:
  static constexpr std::size_t kChunkRows = 4;  // some 4 us of work: so long do others wait at most for the last one
  static constexpr int kYields = 100;  // some 30 us: a loop around step() is back sooner, and waking takes as long

  struct alignas(64) Share {  // a cache line each
    std::atomic<std::size_t> next = 0;
    std::size_t end = 0;
  };

  void end() {
    stop_ = true;
    begin_round();
    for (std::thread& thread : threads_) thread.join();
  }

  void begin_round() {
    ++round_;
    round_.notify_all();
  }

  static void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
    for (int i = 0; i < kYields; ++i) {
      if (value != old) return;
      std::this_thread::yield();
    }
    value.wait(old);
  }

  void work(std::size_t number) {
    for (std::uint32_t seen_round = 0;;) {
      wait_while(round_, seen_round);
      ++seen_round;  // none begins before all are through with the one before
      if (stop_) return;
      task_(number);
      if (--busy_ == 0) busy_.notify_one();
    }
  }

  std::vector<Share> shares_;
  std::function<void(std::size_t)> task_;
  std::atomic<std::uint32_t> round_ = 0, busy_ = 0;
  std::atomic<bool> stop_ = false;
  std::uint32_t forks_ = forks();  // when the threads were started
  std::vector<std::thread> threads_;
};

}  // namespace reinet

#endif
