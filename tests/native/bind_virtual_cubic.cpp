// SPDX-License-Identifier: Apache-2.0
// The simulator's sender under Cubic and the gate's virtual Cubic, side by side: the same ACKs come to both.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "alcc/stats/virtual_cubic.hpp"
#include "core/cc/kernel/cubic.hpp"
#include "driven.hpp"
#include "envs/sim/path/packet.hpp"
#include "envs/sim/tcp/receiver.hpp"
#include "envs/sim/tcp/sender.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace reinet {
namespace {

// After an ACK: the simulator's window and ssthresh, the virtual ones, and whether a loss was being mended.
using Windows = std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, bool>>;

class Beside {
 public:
  Beside(std::uint32_t buffer_pkts, std::uint32_t cap_pkts, std::uint32_t acks_per_look, Us uncapped_us)
      : buffer_pkts_(buffer_pkts), cap_pkts_(cap_pkts), acks_per_look_(acks_per_look), uncapped_us_(uncapped_us) {}

  Windows run(Us seconds_us);

 private:
  static constexpr std::uint32_t kMssBytes = 1448, kRttUs = 40'000, kServiceUs = 1'000;
  static constexpr Us kStartUs = 1'000'000;
  static constexpr std::uint32_t kNoCapPkts = 1'000'000;  // in force, so that the window is its own, and binds never

  auto onto_path() {
    return [this](std::uint32_t seq, Us sent_us) {
      next_ = std::max(next_, seq + 1);
      const Us there_us = sent_us + kRttUs / 2;
      if (left_us_ > there_us + static_cast<Us>(buffer_pkts_) * kServiceUs) return;  // the queue is full
      left_us_ = std::max(there_us, left_us_) + kServiceUs;
      receiver_.on_packet({seq, 1500, 0, sent_us, left_us_}, left_us_, [&](Ack ack, bool) {
        ack.arrives_us = left_us_ + kRttUs / 2;
        acks_.push_back(ack);
      });
    };
  }

  void hear(Us now_us) {
    const Ack ack = acks_.front();
    acks_.pop_front();
    una_ = std::max(una_, ack.next_seq);
    reinet_ack seen{};
    const std::uint32_t next = next_;
    sim_.on_ack(
        ack, now_us, cap_pkts_,
        [&](auto&& write) {
          write(seen);
          // What the sender is in after an ACK the next one tells: it looks before that acts.
          if (waiting_) look(seen.flags & REINET_FLAG_IN_RECOVERY);
        },
        onto_path());
    if (++unseen_acks_ < acks_per_look_) return;
    unseen_acks_ = 0;
    alcc::KernelView view;
    tcp_info& i = view.info;
    i.tcpi_snd_mss = kMssBytes;
    i.tcpi_data_segs_out = next;
    i.tcpi_unacked = next - una_;
    i.tcpi_sacked = i.tcpi_unacked - std::min(i.tcpi_unacked, seen.inflight_pkts);
    i.tcpi_delivered = static_cast<std::uint32_t>(seen.delivered_bytes / kMssBytes);
    i.tcpi_rtt = seen.srtt_us;
    i.tcpi_min_rtt = seen.min_rtt_us;
    i.tcpi_rto = 200'000 + seen.srtt_us;
    i.tcpi_snd_cwnd = sim_.window().cwnd_pkts;
    i.tcpi_snd_ssthresh = sim_.window().ssthresh_pkts;
    waiting_ = Look{view, now_us, seen.rtt_us, sim_.window()};
  }

  void look(bool mending) {
    Look now = *std::exchange(waiting_, std::nullopt);
    now.view.info.tcpi_ca_state = mending ? 3 : 0;  // TCP_CA_Recovery, TCP_CA_Open
    const std::uint32_t delivered_pkts = now.view.info.tcpi_delivered;
    const alcc::Heard heard{looked_us_, now.now_us, now.rtt_us, acks_per_look_, delivered_pkts - looked_at_pkts_};
    const std::uint32_t cap_pkts = cap_pkts_ ? cap_pkts_ : kNoCapPkts;
    virtual_.on_look(now.view, heard, true, now.now_us < kStartUs + uncapped_us_ ? 0 : cap_pkts);
    looked_at_pkts_ = delivered_pkts;
    looked_us_ = now.now_us;
    windows_.emplace_back(now.sim.cwnd_pkts, now.sim.ssthresh_pkts, virtual_.cwnd_pkts(), virtual_.ssthresh_pkts(),
                          mending);
  }

  struct Look {
    alcc::KernelView view;
    Us now_us;
    std::int32_t rtt_us;
    Window sim;
  };

  std::uint32_t buffer_pkts_, cap_pkts_, acks_per_look_;
  Us uncapped_us_;
  Sender<Cubic> sim_{kMssBytes, Application({}, kMssBytes), 0, 1};
  alcc::VirtualCubic virtual_;
  Receiver receiver_{2.0, 0, true};
  std::deque<Ack> acks_;
  std::optional<Look> waiting_;
  Windows windows_;
  std::uint32_t next_ = 0, una_ = 0, looked_at_pkts_ = 0, unseen_acks_ = 0;
  Us left_us_ = 0, looked_us_ = kStartUs;
};

Windows Beside::run(Us seconds_us) {
  sim_.start(kStartUs, kRttUs, onto_path());
  while (true) {
    const Us ack_us = acks_.empty() ? kNever : acks_.front().arrives_us;
    const Us now_us = std::min(ack_us, sim_.timer_us());
    if (now_us > kStartUs + seconds_us) return std::move(windows_);
    if (ack_us <= now_us)
      hear(now_us);
    else
      sim_.on_timer(now_us, onto_path());
  }
}

Windows cubic_side_by_side(double seconds, std::uint32_t buffer_pkts, std::uint32_t cap_pkts,
                           std::uint32_t acks_per_look, double uncapped_seconds) {
  const auto uncapped_us = static_cast<Us>(uncapped_seconds * 1e6);
  return Beside(buffer_pkts, cap_pkts, acks_per_look, uncapped_us).run(static_cast<Us>(seconds * 1e6));
}

}  // namespace

void bind_virtual_cubic(nb::module_& m) {
  m.def("cubic_side_by_side", &cubic_side_by_side, "seconds"_a, "buffer_pkts"_a, "cap_pkts"_a = 0,
        "acks_per_look"_a = 1, "uncapped_seconds"_a = 0.0);
}

}  // namespace reinet
