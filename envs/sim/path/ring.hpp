// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_RING_HPP
#define REINET_RING_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

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
  // What comes out stays where it is until the next push, and is not copied.
  const T& pop() { return (*this)[head_++]; }
  // An element that comes and goes at once, in an empty ring.
  void skip() { head_ = ++tail_; }
  std::size_t heap_bytes() const { return (std::size_t{mask_} + 1) * sizeof(T); }

 private:
  [[gnu::noinline, gnu::cold]] void grow() {
    const std::uint32_t mask = 2 * mask_ + 1;
    auto wider = std::make_unique<T[]>(std::size_t{mask} + 1);
    for (std::uint32_t i = head_; i != tail_; ++i) wider[i & mask] = (*this)[i];
    slots_ = std::move(wider);
    mask_ = mask;
  }

  static constexpr std::uint32_t kInitialSlots = 16;  // a power of two; thousands of links share a cache
  std::unique_ptr<T[]> slots_ = std::make_unique<T[]>(kInitialSlots);
  std::uint32_t mask_ = kInitialSlots - 1;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
};

}  // namespace reinet

#endif
