// SPDX-License-Identifier: Apache-2.0
// The daemon's end of alcc/link/: one process's memory, mapped. Whoever is at the other end may write anything there at
// any time: records are copied before anybody looks at them, of positions only the difference is believed, and what was
// written here is kept here as well.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "alcc/link/memory.hpp"
#include "alcc/native/parts.hpp"
#include "kshim/native/cap_writer.hpp"
#include "kshim/native/mapping.hpp"

namespace nb = nanobind;

namespace {

using reinet::Failure;
using reinet::store;
using reinet::alcc::kLinkRecords;
using reinet::alcc::kLinkSlots;
using reinet::alcc::LinkHeader;
using reinet::alcc::LinkMemory;

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

class Link {
 public:
  // The descriptor stays the caller's, who has made sure that the memory behind it cannot shrink.
  Link(int fd, std::uint64_t min_period_ns, bool packet_timed)
      : memory_(fd, sizeof(LinkMemory), reinet::Access::write, "a process"), caps_(kLinkSlots) {
    LinkHeader& header = memory_->header;
    if (__atomic_load_n(&header.magic, __ATOMIC_RELAXED) != reinet::alcc::kLinkMagic)
      throw std::invalid_argument("the memory is another version's");
    for (std::size_t i = 0; i < kLinkSlots; ++i) std::memset(&memory_->caps[i], 0, sizeof(reinet_cap));
    taken_ = __atomic_load_n(&header.written, __ATOMIC_ACQUIRE);  // what is there is a former daemon's
    store(header.taken, taken_);
    store(header.packet_timed, std::uint64_t{packet_timed});
    __atomic_store_n(&header.min_period_ns, min_period_ns, __ATOMIC_RELEASE);
  }

  // Returns at most so many records, oldest first, as bytes that nobody else can change.
  Bytes take(std::size_t most) {
    LinkHeader& header = memory_->header;
    const std::uint64_t there = __atomic_load_n(&header.written, __ATOMIC_ACQUIRE) - taken_;
    if (there > kLinkRecords) throw std::invalid_argument("the ring says that it holds more than it can");
    const std::size_t count = std::min<std::uint64_t>(there, most);
    auto* records = new std::vector<reinet_flow_stats>(count);
    const nb::capsule owner(records, [](void* p) noexcept { delete static_cast<std::vector<reinet_flow_stats>*>(p); });
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(&(*records)[i], &memory_->records[(taken_ + i) % kLinkRecords], sizeof(reinet_flow_stats));
    taken_ += count;
    __atomic_store_n(&header.taken, taken_, __ATOMIC_RELEASE);
    return Bytes(reinterpret_cast<std::uint8_t*>(records->data()), {count * sizeof(reinet_flow_stats)}, owner);
  }

  void apply(std::uint32_t slot, std::uint64_t cookie, std::uint32_t cap_pkts, std::uint64_t expires_ns,
             std::uint32_t target_us) {
    reinet::write_cap(own(slot), cookie, expires_ns, cap_pkts, target_us);
    publish(slot);
  }

  void release(std::uint32_t slot, std::uint64_t cookie) {
    reinet::lift_cap(own(slot), cookie);
    publish(slot);
  }

  bool busy(std::uint32_t slot) const {
    own(slot);
    return __atomic_load_n(&memory_->busy[slot], __ATOMIC_RELAXED) != 0;
  }

 private:
  reinet_cap& own(std::uint32_t slot) const {
    if (slot >= kLinkSlots) throw std::out_of_range("slot " + std::to_string(slot) + " does not exist");
    return caps_[slot];
  }

  // Writes our own copy of a cap into the memory, which the other end may have changed, under the sequence of cap.h.
  void publish(std::uint32_t slot) const {
    const reinet_cap& from = caps_[slot];
    reinet_cap& to = memory_->caps[slot];
    const bool same_flow = __atomic_load_n(&to.cap_cookie, __ATOMIC_RELAXED) == from.cap_cookie;
    if (!same_flow) {
      store(to.sequence, from.sequence - 1);
      std::atomic_thread_fence(std::memory_order_release);
      store(to.cap_cookie, from.cap_cookie);
    }
    store(to.target_us, from.target_us);
    store(to.lease, from.lease);
    __atomic_store_n(&to.sequence, from.sequence, __ATOMIC_RELEASE);
  }

  reinet::Mapping<LinkMemory> memory_;
  mutable std::vector<reinet_cap> caps_;
  std::uint64_t taken_;
};

}  // namespace

NB_MODULE(_alcc, m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      PyErr_SetObject(PyExc_OSError, nb::make_tuple(failure.code().value(), failure.what()).ptr());
    }
  });
  m.attr("LINK_BYTES") = sizeof(LinkMemory);
  m.attr("LINK_SLOTS") = kLinkSlots;
  m.attr("LINK_RECORDS") = kLinkRecords;
  m.attr("LINK_MAGIC") = reinet::alcc::kLinkMagic;
  m.attr("WRITTEN_AT") = offsetof(LinkMemory, header.written);
  m.attr("CAPS_AT") = offsetof(LinkMemory, caps);
  m.attr("RECORDS_AT") = offsetof(LinkMemory, records);
  nb::class_<Link>(m, "Link")
      .def(nb::init<int, std::uint64_t, bool>(), nb::arg("fd"), nb::arg("min_period_ns"), nb::arg("packet_timed"))
      .def("take", &Link::take, nb::arg("most"))
      .def("apply", &Link::apply)
      .def("release", &Link::release)
      .def("busy", &Link::busy);
  reinet::alcc::bind_udp(m);
  reinet::alcc::bind_signals(m);
  reinet::alcc::bind_sums(m);
}
