// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RING_HPP
#define REINET_RING_HPP

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace reinet {

// A FIFO whose elements keep their number for life: the first ever pushed is 0. Elements [head, tail) are present, and
// operator[] takes such a number, so that a ring of segments is indexed by sequence number. Grows by doubling and
// never shrinks, so a link that has warmed up allocates nothing. Numbers wrap at 2^32.
template <class T>
class Ring {
 public:
  std::uint32_t head() const { return head_; }
  std::uint32_t tail() const { return tail_; }
  std::uint32_t size() const { return tail_ - head_; }
  bool empty() const { return head_ == tail_; }

  T& operator[](std::uint32_t number) { return slots_[number & mask_]; }
  const T& operator[](std::uint32_t number) const { return slots_[number & mask_]; }
  T& front() { return (*this)[head_]; }
  const T& front() const { return (*this)[head_]; }

  void push(const T& value) {
    if (size() > mask_) [[unlikely]]
      grow();
    (*this)[tail_++] = value;
  }
  T pop() { return (*this)[head_++]; }
  // An element that comes and goes at once, in an empty ring.
  void skip() { head_ = ++tail_; }
  std::size_t heap_bytes() const { return slots_.capacity() * sizeof(T); }

 private:
  [[gnu::noinline, gnu::cold]] void grow() {
    std::vector<T> wider(slots_.size() * 2);
    const auto mask = static_cast<std::uint32_t>(wider.size() - 1);
    for (std::uint32_t i = head_; i != tail_; ++i) wider[i & mask] = (*this)[i];
    slots_ = std::move(wider);
    mask_ = mask;
  }

  static constexpr std::uint32_t kInitialSlots = 64;  // a power of two; a few kilobytes for an idle link
  std::vector<T> slots_ = std::vector<T>(kInitialSlots);
  std::uint32_t mask_ = kInitialSlots - 1;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
};

}  // namespace reinet

#endif
