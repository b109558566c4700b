// SPDX-License-Identifier: Apache-2.0
#include "alcc/driver/driver.hpp"

#include <utility>

#include "core/cc/congestion_controls.hpp"

namespace reinet::alcc {

namespace {

template <class Control>
concept DatagramLaw = ModelControl<Control> && Control::kAckedSingly;

template <DatagramLaw Control>
class Driver final : public LawDriver {
 public:
  void start(const Start& start) override {
    rtt_.add(start.rtt_us, 0, 0);
    newest_rtt_us_ = start.rtt_us;
    heard_us_ = last_sent_us_ = start.now_us;
    control_.on_start(window_, start);
  }

  void sent(Us now_us) override {
    if (in_flight_pkts_ == 0) {
      control_.on_restart(window_, {now_us, now_us - last_sent_us_, next_, false});
      heard_us_ = now_us;
    }
    ++next_;
    ++in_flight_pkts_;
    last_sent_us_ = now_us;
    if constexpr (Tracking<Control>) control_.on_packet_sent(now_us);
  }

  void delivered([[maybe_unused]] Us sent_us, [[maybe_unused]] Us now_us, bool late) override {
    ++new_delivered_pkts_;
    ++delivered_pkts_;
    if (!late) --in_flight_pkts_;
    if constexpr (Tracking<Control>) control_.on_packet_delivered(sent_us, now_us);
  }

  void lost([[maybe_unused]] Us sent_us) override {
    ++new_lost_pkts_;
    ++lost_pkts_;
    --in_flight_pkts_;
    if constexpr (Tracking<Control>) control_.on_packet_lost(sent_us);
  }

  void acked(Us now_us, std::int32_t rtt_us) override {
    heard_us_ = now_us;
    if (rtt_us >= 0) {
      newest_rtt_us_ = static_cast<Us>(rtt_us);
      rtt_.add(static_cast<std::uint32_t>(rtt_us), next_ - in_flight_pkts_, next_);
      doublings_ = 0;
    }
    const AckEvent event = take_event(now_us, rtt_us);
    control_.on_sample(window_, event);
    control_.on_ack(window_, event, RateSample{});
  }

  Us timer_us() const override {
    if constexpr (Clocked<Control>) return control_.timer_us();
    return kNever;
  }
  void on_timer([[maybe_unused]] Us now_us) override {
    if constexpr (Clocked<Control>)
      while (control_.timer_us() <= now_us) control_.on_timer(window_, now_us, in_flight_pkts_);
  }

  // The law's own, or else TCP's (RFC 6298), which doubles while nothing is heard.
  Us timeout_us() const override {
    if (in_flight_pkts_ == 0) return kNever;
    if constexpr (OwnTimeout<Control>)
      return heard_us_ + control_.timeout_us();
    else
      return heard_us_ + std::min(rtt_.timeout_us() << doublings_, kMostTimeoutUs);
  }
  void time_out(Us now_us) override {
    heard_us_ = now_us;
    new_lost_pkts_ = new_delivered_pkts_ = 0;
    if constexpr (OwnTimeout<Control>) {
      control_.on_timeout(window_, now_us, in_flight_pkts_);
    } else {
      window_.ssthresh_pkts = control_.on_loss(window_, LossCause::kTimeout);
      window_.cwnd_pkts = in_flight_pkts_ + 1;
      if (doublings_ < kMostDoublings) ++doublings_;
    }
  }

  std::uint32_t window_pkts() const override { return window_.cwnd_pkts; }
  double pacing_bytes_per_s() const override {
    if constexpr (Paced<Control>) return control_.pacing_bytes_per_s();
    return 0.0;
  }
  bool grants_packets() const override { return Control::kGrantsPackets; }
  std::uint32_t min_burst_pkts() const override {
    if constexpr (Paced<Control>) return control_.min_burst_pkts();
    return 1;
  }
  std::uint32_t most_ip_bytes() const override { return Control::kMostIpBytes; }

 private:
  static constexpr Us kMostTimeoutUs = 5'000'000;  // a path that comes back is found within that
  static constexpr std::uint32_t kMostDoublings = 5;

  AckEvent take_event(Us now_us, std::int32_t rtt_us) {
    AckEvent event{};
    event.now_us = now_us;
    event.rtt_us = rtt_us;
    event.una = next_ - in_flight_pkts_;
    event.next = next_;
    event.acked_pkts = event.delivered_pkts = std::exchange(new_delivered_pkts_, 0);
    event.lost_pkts = std::exchange(new_lost_pkts_, 0);
    event.in_flight_pkts = in_flight_pkts_;
    event.prior_in_flight_pkts = in_flight_pkts_ + event.delivered_pkts + event.lost_pkts;
    event.delivered_total_pkts = delivered_pkts_;
    event.lost_total_pkts = lost_pkts_;
    event.srtt_us = rtt_.srtt_us();
    event.min_rtt_us = rtt_.min_us();
    event.window_limited = true;
    event.in_order = event.lost_pkts == 0;
    event.state = SenderState::kOpen;
    return event;
  }

  Control control_;
  Window window_{kInitialWindowPkts, ~0U >> 1, 0};
  Us heard_us_ = 0, last_sent_us_ = 0;  // heard: the last ACK, or the first packet after nothing was out
  std::uint32_t new_delivered_pkts_ = 0, new_lost_pkts_ = 0;
  std::uint32_t doublings_ = 0;
};

// Calls use.operator()<Control>() for each law that runs here.
template <class Use, class... Controls>
void each_law(Use&& use, ControlList<Controls...>) {
  const auto one = [&]<class Control>() {
    if constexpr (DatagramLaw<Control>) use.template operator()<Control>();
  };
  (one.template operator()<Controls>(), ...);
}

}  // namespace

std::unique_ptr<LawDriver> make_law(std::string_view name) {
  std::unique_ptr<LawDriver> made;
  each_law(
      [&]<class Control>() {
        if (name == Control::kName) made = std::make_unique<Driver<Control>>();
      },
      CongestionControls{});
  return made;
}

std::vector<std::string_view> law_names() {
  std::vector<std::string_view> names;
  each_law([&]<class Control>() { names.emplace_back(Control::kName); }, CongestionControls{});
  return names;
}

}  // namespace reinet::alcc
