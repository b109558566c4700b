// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_WORKERS_HPP
#define REINET_WORKERS_HPP

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace reinet {

// Threads that share out the rows of a batch, the caller being one of them. Rows are independent of each other, so it
// does not matter which thread takes which.
class Workers {
 public:
  explicit Workers(std::size_t threads) {
    for (std::size_t i = 1; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Calls use(row) once for each row below count, and returns when all are done. use must not throw.
  template <class Use>
  void for_each(std::size_t count, Use&& use) {
    if (threads_.empty()) {
      for (std::size_t row = 0; row < count; ++row) use(row);
      return;
    }
    next_ = 0;
    const auto take_rows = [&] {
      for (std::size_t from; (from = next_.fetch_add(kChunkRows)) < count;)
        for (std::size_t row = from; row < std::min(from + kChunkRows, count); ++row) use(row);
    };
    {
      const std::lock_guard lock(mutex_);
      task_ = take_rows;
      busy_ = threads_.size();
      ++round_;
    }
    start_.notify_all();
    take_rows();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    task_ = nullptr;
  }

 private:
  static constexpr std::size_t kChunkRows = 16;  // some 30 us of work: less would queue for the counter

  void work() {
    std::size_t seen_round = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return stop_ || round_ != seen_round; });
      if (stop_) return;
      seen_round = round_;
      lock.unlock();
      task_();  // not changed while this thread is busy
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::function<void()> task_;
  std::atomic<std::size_t> next_ = 0;
  std::size_t round_ = 0, busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace reinet

#endif
