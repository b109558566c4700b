// SPDX-License-Identifier: Apache-2.0
// Both ends of a transfer over UDP for alcc/datagrams.py, which has made the sockets and shaken hands.
#include "alcc/native/parts.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "alcc/driver/driver.hpp"
#include "alcc/udp/receiver.hpp"
#include "alcc/udp/sender.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace reinet::alcc {

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig>;

// A sender that holds on to the bytes, which are Python's.
class Sending {
 public:
  // endless: the data is one block twice, so that a packet may begin anywhere in the first.
  Sending(int fd, std::uint64_t token, const std::string& law, Bytes data, bool endless, std::uint64_t seconds_us,
          std::uint32_t rtt_us, std::uint64_t seed)
      : data_(std::move(data)), sender_(fd, token, law, source(endless), seconds_us, rtt_us, seed) {}

  bool step(std::uint64_t most_us) { return sender_.step(most_us); }
  const UdpSender& sender() const { return sender_; }

 private:
  Source source(bool endless) const {
    if (endless && data_.size() < 2 * std::uint64_t{kMostIpBytes})
      throw std::invalid_argument("a block to repeat must be longer than a packet");
    return {data_.data(), endless ? data_.size() / 2 : data_.size(), endless};
  }

  Bytes data_;
  UdpSender sender_;
};

nb::dict told(const Sending& sending) {
  const UdpSender& s = sending.sender();
  const UdpSender::Counts& c = s.counts();
  nb::dict d;
  d["sent_bytes"] = s.sent_bytes();
  d["unsent_bytes"] = s.unsent_bytes();
  d["acked_bytes"] = c.acked_bytes;
  d["acked_in_time_bytes"] = c.acked_in_time_bytes;
  d["sending_us"] = c.sending_us;
  d["sent_pkts"] = c.sent_pkts;
  d["lost_pkts"] = c.lost_pkts;
  d["late_acks"] = c.late_acks;
  d["timeouts"] = c.timeouts;
  d["ignored_datagrams"] = c.ignored_datagrams;
  d["rtt_samples"] = s.rtts().count();
  d["rtt_mean_us"] = s.rtts().mean_us();
  d["rtt_p95_us"] = s.rtts().quantile_us(0.95);
  d["payload_bytes"] = s.payload_bytes();
  return d;
}

nb::dict heard(const UdpReceiver& receiver) {
  const UdpReceiver::Counts& c = receiver.counts();
  nb::dict d;
  d["received_bytes"] = c.received_bytes;
  d["received_pkts"] = c.received_pkts;
  d["duplicate_pkts"] = c.duplicate_pkts;
  d["ignored_datagrams"] = c.ignored_datagrams;
  d["receiving_us"] = c.receiving_us;
  d["cut_short"] = c.cut_short;
  return d;
}

}  // namespace

void bind_udp(nb::module_& m) {
  m.def("law_names", [] {
    std::vector<std::string> names;
    for (const auto name : law_names()) names.emplace_back(name);
    return names;
  });
  nb::class_<Sending>(m, "UdpSender")
      .def(nb::init<int, std::uint64_t, const std::string&, Bytes, bool, std::uint64_t, std::uint32_t, std::uint64_t>(),
           "fd"_a, "token"_a, "law"_a, "data"_a, "endless"_a, "seconds_us"_a, "rtt_us"_a, "seed"_a)
      .def("step", &Sending::step, "most_us"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("failure", [](const Sending& s) { return s.sender().failure(); })
      .def("counts", &told);
  nb::class_<UdpReceiver>(m, "UdpReceiver")
      .def(nb::init<int, std::uint64_t, int>(), "fd"_a, "token"_a, "out_fd"_a)
      .def("take",
           [](UdpReceiver& r, nb::bytes datagram) {
             r.take(static_cast<const std::uint8_t*>(datagram.data()), datagram.size());
           })
      .def("step", &UdpReceiver::step, "most_us"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("failure", &UdpReceiver::failure)
      .def("counts", &heard);
}

}  // namespace reinet::alcc
