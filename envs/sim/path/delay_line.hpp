// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_DELAY_LINE_HPP
#define REINET_DELAY_LINE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "envs/sim/path/packet.hpp"
#include "envs/sim/path/ring.hpp"

namespace reinet {

// A fixed delay with the semantics of mm-delay: its time is counted from the start of the millisecond in which a packet
// comes, and the process that delays sleeps whole milliseconds, counted from its last wake, and is also woken by every
// packet that comes. So a packet that is alone takes the delay and the process's lateness, and one among others up to a
// millisecond more or less: it leaves at the first wake at or after its time.
template <class Item>
class DelayLine {
 public:
  // late_us: how late every sleep ends; 0 = no process sleeps here, every packet takes the delay.
  DelayLine(Us delay_us, Us late_us) : delay_us_(delay_us), late_us_(late_us) {}

  // The item comes at item.arrives_us, not before the one before it.
  void push(const Item& item) {
    const bool was_empty = items_.empty();
    items_.push(item);
    if (was_empty) {
      update();
    } else if (item.arrives_us < leaves_us_ && late_us_ != 0) {
      next_wake_ = items_.tail();
      if (item.arrives_us != last_wake_us_) wake(item.arrives_us);
    }
  }

  // Returns when the next item leaves, as far as is known: one that is still to come may wake the process earlier.
  Us next_us() const { return leaves_us_; }

  // Takes that item out; its arrives_us becomes the time at which it leaves.
  const Item& pop() {
    Item& item = items_.front();
    item.arrives_us = last_wake_us_ = leaves_us_;
    free_us_ = leaves_us_ + kHandlingUs;
    items_.pop();
    update();
    return item;
  }

  // Returns the item that came last; there must be one.
  Item& back() { return items_[items_.tail() - 1]; }

  std::size_t size() const { return items_.size(); }
  std::size_t heap_bytes() const { return items_.heap_bytes(); }

 private:
  // The first item has changed.
  void update() {
    if (items_.empty()) {
      leaves_us_ = kNever;
      return;
    }
    const Us came_us = items_.front().arrives_us;
    if (late_us_ == 0) {
      leaves_us_ = std::max(came_us + delay_us_, free_us_);
      return;
    }
    due_us_ = came_us - came_us % kUsPerMs + delay_us_;
    if (static_cast<std::int32_t>(next_wake_ - items_.head()) <= 0) {  // its own arrival is the first that counts
      next_wake_ = items_.head() + 1;
      last_wake_us_ = std::max(last_wake_us_, came_us);
    }
    wake(last_wake_us_);
    for (; next_wake_ != items_.tail() && items_[next_wake_].arrives_us < leaves_us_; ++next_wake_)
      wake(items_[next_wake_].arrives_us);
  }

  // The process wakes, not after the first item leaves.
  void wake(Us now_us) {
    last_wake_us_ = now_us;
    leaves_us_ = std::max(due_us_ <= now_us ? now_us : due_us_ + now_us % kUsPerMs + late_us_, free_us_);
  }

  // Reading and writing a packet. It matters that it is not 0: a sender that gets several ACKs at one time could not
  // tell the order in which it answered them (RACK).
  static constexpr Us kHandlingUs = 5;

  Us delay_us_, late_us_;
  Us due_us_ = 0;          // the first item,
  Us leaves_us_ = kNever;  // and when it does leave
  Us last_wake_us_ = 0;
  Us free_us_ = 0;               // when the process has handed on the last item
  std::uint32_t next_wake_ = 0;  // the first item whose arrival is not yet counted as a wake
  Ring<Item> items_;
};

}  // namespace reinet

#endif
