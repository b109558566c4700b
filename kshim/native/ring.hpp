// SPDX-License-Identifier: Apache-2.0
// The reading end of a BPF ring buffer, by mapped memory and poll(2) alone: libbpf's needs a bpf() call to open, which
// a process without capabilities may not make. The layout is the kernel's ABI (kernel/bpf/ringbuf.c): a page with the
// reader's position, a page with the writer's, then the data, mapped twice in a row so that no entry is ever cut.
//
// The kernel sends an interrupt for an entry that finds all others read, whether or not a reader waits. So the
// latest entry is given back only before waiting: who rests between two looks is not sent one for every rest.
#pragma once

#include <linux/bpf.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kshim/native/failure.hpp"
#include "kshim/native/mapping.hpp"

namespace reinet {

class Ring {
 public:
  // The descriptor stays the caller's. bytes: the ring buffer's size, a power of two.
  Ring(int fd, std::size_t bytes, const std::string& what)
      : fd_(fd),
        bytes_(bytes),
        page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
        read_(fd, page_, Access::write, what),
        written_(fd, page_ + 2 * bytes, Access::read, what, page_),
        at_(*read_.data()) {}

  // Calls take(entry) for every entry of this type that is there, oldest first.
  template <typename Entry, typename Take>
  void consume(const Take& take) {
    while (at_ < __atomic_load_n(written_.data(), __ATOMIC_ACQUIRE)) {
      const char* entry = reinterpret_cast<const char*>(written_.data()) + page_ + (at_ & (bytes_ - 1));
      const std::uint32_t length = __atomic_load_n(reinterpret_cast<const std::uint32_t*>(entry), __ATOMIC_ACQUIRE);
      if (length & BPF_RINGBUF_BUSY_BIT) return;  // still being written, and what follows waits for it
      give_back();
      const std::size_t size = length & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
      if (!(length & BPF_RINGBUF_DISCARD_BIT) && size == sizeof(Entry))
        take(*reinterpret_cast<const Entry*>(entry + BPF_RINGBUF_HDR_SZ));
      at_ += (size + BPF_RINGBUF_HDR_SZ + 7) / 8 * 8;
    }
  }

  // Skips what is there.
  void discard() {
    at_ = __atomic_load_n(written_.data(), __ATOMIC_ACQUIRE);
    give_back();
  }

  // Waits until there is an entry or the time is over. Returns false when a signal came.
  bool wait(int timeout_ms) {
    give_back();  // poll looks for entries itself, so none that comes now is slept through
    pollfd one{fd_, POLLIN, 0};
    if (poll(&one, 1, timeout_ms) >= 0) return true;
    if (errno != EINTR) throw Failure(errno, "wait for records");
    return false;
  }

 private:
  void give_back() { __atomic_store_n(read_.data(), at_, __ATOMIC_RELEASE); }

  int fd_;
  std::size_t bytes_, page_;
  Mapping<std::uint64_t> read_, written_;
  std::uint64_t at_;  // all before it was taken
};

}  // namespace reinet
