// SPDX-License-Identifier: Apache-2.0
// The simulator's sender and the driver outside it, side by side: the same packets leave, the same ACKs come.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "alcc/driver/driver.hpp"
#include "alcc/udp/flight.hpp"
#include "core/cc/congestion_controls.hpp"
#include "driven.hpp"
#include "envs/sim/path/packet.hpp"
#include "envs/sim/tcp/receiver.hpp"
#include "envs/sim/tcp/sender.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace reinet {
namespace {

using Windows = std::vector<std::pair<std::uint32_t, std::uint32_t>>;  // the simulator's, the driver's

template <class Control>
class SideBySide {
 public:
  SideBySide(std::uint32_t loss_every, std::uint64_t reordering_pkts)
      : loss_every_(loss_every),
        sim_(kMssBytes, Application({}, kMssBytes), 0, kSeed),
        driver_(alcc::make_law(Control::kName)),
        flight_(reordering_pkts) {
    if (!driver_) throw std::invalid_argument("no such law");
  }

  Windows run(Us seconds_us) {
    Windows windows;
    driver_->start({kStartUs, kRttUs, kMssBytes, 0, kSeed});
    sim_.start(kStartUs, kRttUs, onto_path());
    while (true) {
      const Us ack_us = acks_.empty() ? kNever : acks_.front().ack.arrives_us;
      const Us now_us = std::min(ack_us, sim_.timer_us());
      if (now_us > kStartUs + seconds_us) return windows;
      if (ack_us <= now_us) {
        const Coming coming = acks_.front();
        acks_.pop_front();
        hear(coming.number, now_us);
        sim_.on_ack(coming.ack, now_us, 0, [](const auto&) {}, onto_path());
      } else {
        driver_->on_timer(now_us);
        sim_.on_timer(now_us, onto_path());
      }
      windows.emplace_back(sim_.window().cwnd_pkts, driver_->window_pkts());
    }
  }

 private:
  static constexpr std::uint32_t kMssBytes = 1448, kRttUs = 40'000;
  static constexpr Us kStartUs = 1'000'000;
  static constexpr std::uint64_t kSeed = 1;

  struct Coming {
    Ack ack;
    std::uint64_t number;
  };

  auto onto_path() {
    return [this](std::uint32_t seq, Us sent_us) {
      const std::uint64_t number = flight_.next();
      flight_.send({sent_us, 0, seq, alcc::Fate::out});
      driver_->sent(sent_us);
      const bool first = seq >= most_seq_;
      most_seq_ = std::max(most_seq_, seq + 1);
      if (loss_every_ && first && seq % loss_every_ == loss_every_ - 1) return;
      // A link whose rate changes from 4 to 24 Mbit/s and back every 300 ms.
      const Us service_us = (sent_us / 300'000) % 2 ? 3'000 : 500;
      left_us_ = std::max(sent_us + kRttUs / 2, left_us_ + service_us);
      receiver_.on_packet({seq, 1500, 0, sent_us, left_us_}, left_us_, [&](Ack ack, bool) {
        ack.arrives_us = left_us_ + kRttUs / 2;
        acks_.push_back({ack, number});
      });
    };
  }

  void hear(std::uint64_t number, Us now_us) {
    const alcc::Packet* packet = flight_.find(number);
    if (!packet) throw std::logic_error("an ACK of nothing");
    const Us sent_us = packet->sent_us;
    driver_->delivered(sent_us, now_us, packet->fate == alcc::Fate::lost);
    flight_.acknowledge(number, [&](const alcc::Packet& lost) { driver_->lost(lost.sent_us); });
    driver_->acked(now_us, static_cast<std::int32_t>(now_us - sent_us));
  }

  std::uint32_t loss_every_, most_seq_ = 0;
  Sender<Control> sim_;
  std::unique_ptr<alcc::LawDriver> driver_;
  alcc::Flight flight_;
  Receiver receiver_{2.0, 0, true};
  std::deque<Coming> acks_;
  Us left_us_ = 0;
};

Windows windows_side_by_side(const std::string& law, double seconds, std::uint32_t loss_every,
                             std::uint64_t reordering_pkts) {
  Windows windows;
  with_congestion_control(law, [&]<class Control>() {
    if constexpr (Control::kAckedSingly)
      windows = SideBySide<Control>(loss_every, reordering_pkts).run(static_cast<Us>(seconds * 1e6));
  });
  return windows;
}

// The numbers given up, for packets of which these are acknowledged, in that order.
std::vector<std::uint64_t> given_up(std::uint64_t sent, const std::vector<std::uint64_t>& acked,
                                    std::uint64_t reordering_pkts) {
  alcc::Flight flight(reordering_pkts);
  for (std::uint64_t number = 0; number < sent; ++number) flight.send({number, 0, number, alcc::Fate::out});
  std::vector<std::uint64_t> lost;
  for (const std::uint64_t number : acked)
    if (flight.find(number)) flight.acknowledge(number, [&](const alcc::Packet& p) { lost.push_back(p.chunk); });
  return lost;
}

}  // namespace

void bind_law(nb::module_& m) {
  m.def("windows_side_by_side", &windows_side_by_side, "law"_a, "seconds"_a, "loss_every"_a, "reordering_pkts"_a);
  m.def("given_up", &given_up, "sent"_a, "acked"_a, "reordering_pkts"_a);
}

}  // namespace reinet
