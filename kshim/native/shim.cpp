// SPDX-License-Identifier: Apache-2.0
// What Python sees of the loader and the reader. Records travel as bytes; Python lays its dtypes over them.
#include <bpf/libbpf.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>

#include "core/states/reflex.hpp"
#include "kshim/native/answering.hpp"
#include "kshim/native/cap_writer.hpp"
#include "kshim/native/failure.hpp"
#include "kshim/native/host.hpp"
#include "kshim/native/memory.hpp"
#include "kshim/native/object.hpp"
#include "kshim/native/reader.hpp"

namespace nb = nanobind;

namespace {

using reinet::Descriptors;
using reinet::Failure;
using reinet::Memory;
using reinet::Object;
using reinet::Options;
using reinet::Reader;

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename Record>
Bytes as_bytes(std::vector<Record> records) {
  auto* kept = new std::vector<Record>(std::move(records));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<Record>*>(p); });
  return Bytes(reinterpret_cast<std::uint8_t*>(kept->data()), {kept->size() * sizeof(Record)}, owner);
}

std::vector<reinet_flow_stats> replayed(const Object& object, Column<std::uint8_t> events) {
  if (events.size() % sizeof(reinet_event)) throw std::invalid_argument("not a whole number of events");
  std::vector<reinet_flow_stats> records;
  reinet_replay step{};
  for (std::size_t at = 0; at < events.size(); at += sizeof(reinet_event)) {
    std::memcpy(&step.event, events.data() + at, sizeof(reinet_event));
    object.replay(step);
    if (step.ended) records.push_back(step.record);
  }
  return records;
}

// Loads, attaches and detaches: whatever needs capabilities.
class Loader {
 public:
  explicit Loader(const Options& options) : object_(std::make_unique<Object>(options)) { object_->register_wrappers(); }

  Object& open() const {
    if (!object_) throw Failure(EBADF, "use a loader that was closed");
    return *object_;
  }

  void close() {
    if (!object_) return;
    const std::unique_ptr<Object> object = std::move(object_);  // goes whatever happens
    object->detach();
  }

 private:
  std::unique_ptr<Object> object_;
};

// Reads records and writes caps, in mapped memory.
class Flows {
 public:
  explicit Flows(const Descriptors& descriptors)
      : memory_(std::make_unique<Memory>(descriptors)), reader_(std::make_unique<Reader>(*memory_)) {}

  Bytes poll(int timeout_ms) {
    open();
    std::vector<reinet_flow_stats> records;
    {
      const nb::gil_scoped_release unlocked;
      records = reader_->poll(timeout_ms);
    }
    return as_bytes(std::move(records));
  }

  // Answers records as they come, until so much time passed since the first of them or so many came, and returns them
  // with what was said of each and when its cap was stored; waits for the first like poll.
  nb::tuple answer(reinet::Reflex& reflex, int timeout_ms, int hold_ms, std::uint64_t rest_us, std::size_t most) {
    open();
    reinet::Answered done;
    {
      const nb::gil_scoped_release unlocked;
      done = answering_.answer(*reader_, *memory_, reflex, {timeout_ms, hold_ms, rest_us * 1000, most});
    }
    return nb::make_tuple(as_bytes(std::move(done.records)), as_bytes(std::move(done.verdicts)),
                          as_bytes(std::move(done.answers)), as_bytes(std::move(done.stored_ns)));
  }

  Bytes take_events() {
    open();
    return as_bytes(reader_->take_events());
  }

  void apply(Column<std::uint64_t> cookies, Column<std::uint32_t> slots, Column<std::uint32_t> caps_pkts,
             std::uint64_t expires_ns, Column<std::uint32_t> targets_us, bool renews) {
    if (slots.size() != cookies.size() || caps_pkts.size() != cookies.size() || targets_us.size() != cookies.size())
      throw std::invalid_argument("cookies, slots, caps_pkts and targets_us differ in length");
    for (std::size_t i = 0; i < cookies.size(); i++) {
      const std::uint32_t slot = checked(slots.data()[i]);
      reinet_cap& cap = open().cap(slot);
      if (renews && reinet_cap_void(&cap, &open().slot(slot))) continue;
      reinet::write_cap(cap, cookies.data()[i], expires_ns, caps_pkts.data()[i], targets_us.data()[i]);
    }
  }

  void release(Column<std::uint64_t> cookies, Column<std::uint32_t> slots) {
    if (slots.size() != cookies.size()) throw std::invalid_argument("cookies and slots differ in length");
    for (std::size_t i = 0; i < cookies.size(); i++)
      reinet::lift_cap(open().cap(checked(slots.data()[i])), cookies.data()[i]);
  }

  Bytes outstanding(Column<std::uint32_t> slots) const {
    std::vector<std::uint8_t> out;
    for (std::size_t i = 0; i < slots.size(); i++)
      out.push_back(__atomic_load_n(&open().slot(checked(slots.data()[i])).outstanding, __ATOMIC_RELAXED) != 0);
    return as_bytes(std::move(out));
  }

  // By name, in the order of slot.h.
  std::vector<std::tuple<std::string, std::uint64_t>> counters() const {
    const reinet_counters& now = open().counters();
#define READ_COUNTER(kind, name, meaning) {#name, __atomic_load_n(&now.name, __ATOMIC_RELAXED)},
    return {REINET_COUNTERS(READ_COUNTER)};
#undef READ_COUNTER
  }

  void close() {
    reader_.reset();
    memory_.reset();
  }

 private:
  Memory& open() const {
    if (!memory_) throw Failure(EBADF, "use a shim that was closed");
    return *memory_;
  }

  std::uint32_t checked(std::uint32_t slot) const {
    if (slot >= open().max_flows()) throw std::out_of_range("slot " + std::to_string(slot) + " does not exist");
    return slot;
  }

  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Reader> reader_;
  reinet::Answering answering_;
};

using Names = std::vector<std::pair<std::string, std::string>>;

// Loaded for its iterators only.
Object onlooker(const Names& wrappers, int flows_map_fd = -1) {
  Options options;
  options.wrappers = wrappers;
  options.max_flows = 1;
  options.records_bytes = 4096;
  options.flows_map_fd = flows_map_fd;
  return Object(options);
}

// Switches back whatever runs under one of the names, which it holds meanwhile: a shim that starts takes others. False,
// with nothing done, where another shim has them.
bool sweep(const Names& wrappers) {
  Object object = onlooker(wrappers);
  try {
    object.register_wrappers();
  } catch (const Failure& failure) {
    if (failure.code().value() != EEXIST) throw;
    return false;
  }
  object.sweep();
  return true;
}

// Opens a map; one that has gone meanwhile, with its last socket, has no descriptor.
reinet::OwnedFd still_there(std::uint32_t map_id) {
  try {
    return reinet::OwnedFd{reinet::open_map(map_id)};
  } catch (const Failure& failure) {
    if (failure.code().value() != ENOENT) throw;
    return reinet::OwnedFd{-1};
  }
}

// Switches back the flows in other shims' maps alone, whoever has the wrappers' names by now.
void sweep_flows(const Names& wrappers, const std::vector<std::uint32_t>& flows_map_ids) {
  for (const std::uint32_t id : flows_map_ids) {
    const reinet::OwnedFd flows_map = still_there(id);
    if (flows_map.fd >= 0) onlooker(wrappers, flows_map.fd).sweep();
  }
}

std::map<std::uint64_t, std::uint32_t> where(const Names& wrappers, const std::vector<std::uint32_t>& flows_map_ids) {
  std::map<std::uint64_t, std::uint32_t> sockets;
  for (const std::uint32_t id : flows_map_ids) {
    const reinet::OwnedFd flows_map = still_there(id);
    if (flows_map.fd < 0) continue;
    for (const auto& [inode, count] : onlooker(wrappers, flows_map.fd).where()) sockets[inode] += count;
  }
  return sockets;
}

std::vector<std::tuple<std::string, std::uint32_t, std::string>> loaded(const std::string& prefix) {
  std::vector<std::tuple<std::string, std::uint32_t, std::string>> out;
  for (const reinet::Loaded& one : reinet::loaded(prefix)) out.emplace_back(one.kind, one.id, one.name);
  return out;
}

}  // namespace

NB_MODULE(_kshim, m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      const auto what = nb::steal<nb::object>(PyUnicode_DecodeFSDefault(failure.what()));  // it may name a file
      PyErr_SetObject(PyExc_OSError, nb::make_tuple(failure.code().value(), what).ptr());
    }
  });

  m.attr("LIBBPF_VERSION") = libbpf_version_string();
  m.attr("LONGEST_LEASE_NS") = REINET_LONGEST_LEASE_NS;
  m.attr("FLOW_BYTES") = sizeof(reinet_slot) + sizeof(reinet_cap) + sizeof(std::uint32_t);  // the last: a free slot
  m.attr("EVENT_SIZE") = sizeof(reinet_event);
  m.attr("EVENT_ACK") = static_cast<int>(REINET_EVENT_ACK);
  m.attr("EVENT_RESTART") = static_cast<int>(REINET_EVENT_RESTART);
#define COUNTER_MEANING(kind, name, meaning) \
  meanings[#name] = meaning;                 \
  kinds[#name] = #kind;
  nb::dict meanings, kinds;
  REINET_COUNTERS(COUNTER_MEANING)
#undef COUNTER_MEANING
  m.attr("COUNTERS") = meanings;
  m.attr("COUNTER_KINDS") = kinds;

  nb::class_<Options>(m, "Options")
      .def(nb::init<>())
      .def_rw("wrappers", &Options::wrappers)
      .def_rw("max_flows", &Options::max_flows)
      .def_rw("records_bytes", &Options::records_bytes)
      .def_rw("events_bytes", &Options::events_bytes)
      .def(
          "set_period",
          [](Options& options, std::uint64_t min_period_ns, bool packet_timed) {
            options.period = {min_period_ns, packet_timed ? 1U : 0U, 0};
          },
          nb::arg("min_period_ns"), nb::arg("packet_timed"))
      .def_rw("default_target_us", &Options::default_target_us);
  nb::class_<Descriptors>(m, "Descriptors")
      .def(nb::init<>())
      .def_rw("slots", &Descriptors::slots)
      .def_rw("caps", &Descriptors::caps)
      .def_rw("counters", &Descriptors::counters)
      .def_rw("records", &Descriptors::records)
      .def_rw("max_flows", &Descriptors::max_flows)
      .def_rw("records_bytes", &Descriptors::records_bytes)
      .def_rw("default_target_us", &Descriptors::default_target_us);
  nb::class_<Loader>(m, "Loader")
      .def(nb::init<const Options&>(), nb::arg("options"))
      .def("descriptors", [](const Loader& loader) { return loader.open().descriptors(); })
      .def(
          "attach",
          [](const Loader& loader, const std::vector<std::filesystem::path>& cgroups) {
            loader.open().attach({cgroups.begin(), cgroups.end()});  // a cgroup's name may be of any bytes
          },
          nb::arg("cgroups"))
      .def("adopt", [](const Loader& loader) { return loader.open().adopt(); })
      .def("lift_caps", [](const Loader& loader) { loader.open().lift_caps(); })
      .def(
          "replay",
          [](const Loader& loader, Column<std::uint8_t> events) { return as_bytes(replayed(loader.open(), events)); },
          nb::arg("events"))
      .def("close", &Loader::close);
  nb::class_<Flows>(m, "Flows")
      .def(nb::init<const Descriptors&>(), nb::arg("descriptors"))
      .def("poll", &Flows::poll, nb::arg("timeout_ms"))
      .def("answer", &Flows::answer, nb::arg("reflex"), nb::arg("timeout_ms"), nb::arg("hold_ms"), nb::arg("rest_us"),
           nb::arg("most"))
      .def("take_events", &Flows::take_events)
      .def("apply", &Flows::apply, nb::arg("cookies"), nb::arg("slots"), nb::arg("caps_pkts"), nb::arg("expires_ns"),
           nb::arg("targets_us"), nb::arg("renews") = false)
      .def("release", &Flows::release, nb::arg("cookies"), nb::arg("slots"))
      .def("outstanding", &Flows::outstanding, nb::arg("slots"))
      .def("counters", &Flows::counters)
      .def("close", &Flows::close);
  m.def("sweep", &sweep, nb::arg("wrappers"));
  m.def("sweep_flows", &sweep_flows, nb::arg("wrappers"), nb::arg("flows_map_ids"));
  m.def("where", &where, nb::arg("wrappers"), nb::arg("flows_map_ids"));
  m.def("loaded", &loaded, nb::arg("prefix"));
  m.def("count_runs", &reinet::count_runs);
  m.def("ask_to_leave", &reinet::ask_to_leave, nb::arg("control_map_id"));
  m.def("wrapper_of", &reinet::wrapper_of, nb::arg("control_map_id"));
  m.def("link_of", &reinet::link_of, nb::arg("control_map_id"));
  m.def("is_linked", &reinet::is_linked, nb::arg("link"));
  m.def("is_leaving", &reinet::is_leaving, nb::arg("control_map_id"));
}
