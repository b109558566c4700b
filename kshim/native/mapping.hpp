// SPDX-License-Identifier: Apache-2.0
// Memory that is shared with the kernel, mapped from a descriptor and unmapped with its owner. A process that is forked
// does not have it: whoever may write there was handed a descriptor.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "kshim/native/failure.hpp"

namespace reinet {

enum class Access { read, write };

template <typename T>
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, std::size_t bytes, Access access, const std::string& what, std::size_t offset = 0) : Mapping() {
    const int protection = access == Access::write ? PROT_READ | PROT_WRITE : PROT_READ;
    void* mapped = mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) throw Failure(errno, "map the memory of " + what);
    data_ = static_cast<T*>(mapped);
    bytes_ = bytes;
    if (madvise(mapped, bytes, MADV_DONTFORK)) throw Failure(errno, "keep from children the memory of " + what);
  }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (data_) munmap(const_cast<std::remove_const_t<T>*>(data_), bytes_);
  }

  T* data() const { return data_; }
  T* operator->() const { return data_; }
  T& operator*() const { return *data_; }
  T& operator[](std::size_t index) const { return data_[index]; }

 private:
  T* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace reinet
