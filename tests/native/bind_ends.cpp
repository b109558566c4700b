// SPDX-License-Identifier: Apache-2.0
// A sender, a receiver, a delay and a trace without a path around them, to be driven step by step: what each answers
// can be checked by hand.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/cc/cap_limited.h"
#include "core/cc/kernel/reno.hpp"
#include "core/cc/outage.h"
#include "core/cc/withheld_window.h"
#include "driven.hpp"
#include "envs/sim/options.hpp"
#include "envs/sim/path/delay_line.hpp"
#include "envs/sim/path/packet.hpp"
#include "envs/sim/path/schedule.hpp"
#include "envs/sim/tcp/application.hpp"
#include "envs/sim/tcp/receiver.hpp"
#include "envs/sim/tcp/sender.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace reinet {
namespace {

class DrivenReceiver {
 public:
  DrivenReceiver(double pkts_per_ack, bool singly) : receiver_(pkts_per_ack, 0, singly) {}

  std::vector<Ack> packet(Us now_us, std::uint32_t seq, Us sent_us) {
    std::vector<Ack> acks;
    receiver_.on_packet({seq, 1500, 0, sent_us, now_us}, now_us,
                        [&](const Ack& ack, bool /*joins*/) { acks.push_back(ack); });
    return acks;
  }
  std::vector<Ack> advance(Us now_us) {
    std::vector<Ack> acks;
    while (receiver_.timer_us() <= now_us) acks.push_back(receiver_.on_timer());
    return acks;
  }

 private:
  Receiver receiver_;
};

// Reno's, whose windows are the easiest to foretell.
class DrivenSender {
  auto path() {
    return [this](std::uint32_t seq, Us sent_us) { sent_.emplace_back(sent_us, seq); };
  }

 public:
  using Sent = std::vector<std::pair<Us, std::uint32_t>>;  // time, segment

  // object_pkts: 0 = all at once.
  DrivenSender(Us now_us, std::uint32_t rtt_us, std::uint64_t total_bytes, std::uint64_t object_pkts, Us pause_us)
      : sender_(kMssBytes, Application({total_bytes, 0.0, object_pkts * kMssBytes, pause_us}, kMssBytes), 0, 0) {
    sender_.start(now_us, rtt_us, path());
  }

  // The sender's own timers, up to that time.
  void advance(Us now_us) {
    for (Us us; (us = sender_.timer_us()) <= now_us;) sender_.on_timer(us, path());
  }
  void ack(Us now_us, std::uint32_t next_seq, Us echo_us, std::uint32_t sack_begin, std::uint32_t sack_end,
           std::uint32_t cap_pkts, std::uint32_t duplicate_end) {
    advance(now_us);
    sender_.on_ack(
        {next_seq, sack_begin, sack_end, duplicate_end, echo_us, now_us, now_us}, now_us, cap_pkts, [](const auto&) {},
        path());
  }
  Sent take_sent() { return std::exchange(sent_, {}); }
  std::uint32_t cwnd_pkts() const { return sender_.window().cwnd_pkts; }
  std::uint32_t ssthresh_pkts() const { return sender_.window().ssthresh_pkts; }

 private:
  static constexpr std::uint32_t kMssBytes = 1448;

  Sender<Reno> sender_;
  Sent sent_;
};

std::vector<Us> delay_line(const std::vector<Us>& arrives_us, Us delay_us, Us late_us) {
  DelayLine<Packet> line(delay_us, late_us);
  std::vector<Us> leaves_us;
  for (const Us now_us : arrives_us) {
    while (line.next_us() < now_us) leaves_us.push_back(line.pop().arrives_us);
    line.push({0, 1500, 0, 0, now_us});
  }
  while (line.size() > 0) leaves_us.push_back(line.pop().arrives_us);
  return leaves_us;
}

std::uint64_t opportunities_until(const std::vector<std::uint32_t>& times_ms, std::uint64_t until_ms) {
  return Schedule(times_ms).count_until(until_ms);
}

// There and back.
std::pair<Us, Us> delays_us(double mrtt_ms, std::optional<double> forward_ms) {
  FlowOptions flow;
  flow.mrtt_ms = mrtt_ms;
  flow.forward_ms = forward_ms;
  return {forward_us(flow), return_us(flow)};
}

}  // namespace

void bind_ends(nb::module_& m) {
  nb::class_<Ack>(m, "Ack")
      .def_ro("next_seq", &Ack::next_seq)
      .def_ro("sack_begin", &Ack::sack_begin)
      .def_ro("sack_end", &Ack::sack_end)
      .def_ro("duplicate_end", &Ack::duplicate_end)
      .def_ro("echo_us", &Ack::echo_us);
  m.def("opportunities_until", &opportunities_until, "times_ms"_a, "until_ms"_a);
  m.def("delays_us", &delays_us, "mrtt_ms"_a, "forward_ms"_a.none());
  m.def("delay_line", &delay_line, "arrives_us"_a, "delay_us"_a, "late_us"_a);
  nb::class_<DrivenReceiver>(m, "DrivenReceiver")
      .def(nb::init<double, bool>(), "pkts_per_ack"_a = 2.0, "singly"_a = false)
      .def("packet", &DrivenReceiver::packet, "now_us"_a, "seq"_a, "sent_us"_a)
      .def("advance", &DrivenReceiver::advance, "now_us"_a);
  nb::class_<DrivenSender>(m, "DrivenSender")
      .def(nb::init<Us, std::uint32_t, std::uint64_t, std::uint64_t, Us>(), "now_us"_a, "rtt_us"_a, "total_bytes"_a = 0,
           "object_pkts"_a = 0, "pause_us"_a = 0)
      .def("advance", &DrivenSender::advance, "now_us"_a)
      .def("ack", &DrivenSender::ack, "now_us"_a, "next_seq"_a, "echo_us"_a, "sack_begin"_a = 0, "sack_end"_a = 0,
           "cap_pkts"_a = 0, "duplicate_end"_a = 0)
      .def("take_sent", &DrivenSender::take_sent)
      .def_prop_ro("cwnd_pkts", &DrivenSender::cwnd_pkts)
      .def_prop_ro("ssthresh_pkts", &DrivenSender::ssthresh_pkts);
  nb::class_<reinet_withheld_window>(m, "WithheldWindow")
      .def(nb::init<>())
      .def_ro("cwnd_pkts", &reinet_withheld_window::cwnd_pkts)
      .def("on_cap", &reinet_withheld_on_cap, "in_force_pkts"_a, "cap_pkts"_a, "delivered_pkts"_a, "timeout"_a = 1)
      .def("blamed_pkts", &reinet_withheld_blamed_pkts, "cwnd_pkts"_a);
  m.def("blamed_ssthresh_pkts", &reinet_blamed_ssthresh_pkts, "blamed_pkts"_a, "cwnd_pkts"_a, "ssthresh_pkts"_a);
  nb::class_<reinet_outage>(m, "Outage")
      .def(nb::init<>())
      .def("on_ack", &reinet_outage_on_ack, "now_us"_a, "rtt_us"_a, "min_rtt_us"_a, "una_seq"_a, "next_seq"_a)
      .def("capped_pkts", &reinet_outage_capped_pkts, "cap_pkts"_a, "in_flight_pkts"_a, "una_seq"_a, "next_seq"_a);
  m.def(
      "cap_limited_until",
      [](std::uint32_t caps_own, std::uint32_t limited_until, std::uint32_t delivered_pkts,
         std::uint32_t in_flight_pkts) {
        const std::uint32_t until = reinet_cap_limited_until(&caps_own, limited_until, delivered_pkts, in_flight_pkts);
        return std::pair(caps_own, until);
      },
      "caps_own"_a, "limited_until"_a, "delivered_pkts"_a, "in_flight_pkts"_a);
  m.def("cwnd_after_idle_pkts", &reinet_cwnd_after_idle_pkts, "cwnd_pkts"_a, "idle"_a, "timeout"_a);
}

}  // namespace reinet
