// SPDX-License-Identifier: Apache-2.0
// One congestion control without a connection, to be driven step by step: its law can be checked by hand.
#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>

#include "core/cc/congestion_controls.hpp"
#include "driven.hpp"

namespace nb = nanobind;

namespace reinet {
namespace {

class AnyControl {
 public:
  virtual ~AnyControl() = default;
  virtual void start(Window& w, const Start& start) = 0;
  virtual void sent(Us now_us) = 0;
  virtual void lost(Us sent_us) = 0;
  virtual void ack(Window& w, const AckEvent& ack, const RateSample& rate, Us sent_us) = 0;
  virtual void loss(Window& w, LossCause cause, const AckEvent& totals) = 0;
  virtual void open(Window& w, bool from_recovery, const AckEvent& totals) = 0;
  virtual void timers(Window& w, Us now_us, std::uint32_t in_flight_pkts) = 0;
  virtual double pacing_bytes_per_s() const = 0;
};

template <class Control>
class Driven final : public AnyControl {
 public:
  void start(Window& w, const Start& start) override { control_.on_start(w, start); }

  void sent([[maybe_unused]] Us now_us) override {
    if constexpr (Tracking<Control>) control_.on_packet_sent(now_us);
  }
  void lost([[maybe_unused]] Us sent_us) override {
    if constexpr (Tracking<Control>) control_.on_packet_lost(sent_us);
  }

  void ack(Window& w, const AckEvent& ack, [[maybe_unused]] const RateSample& rate,
           [[maybe_unused]] Us sent_us) override {
    if constexpr (Tracking<Control>)
      for (std::uint32_t i = 0; i < ack.delivered_pkts; ++i) control_.on_packet_delivered(sent_us, ack.now_us);
    control_.on_sample(w, ack);
    if constexpr (ModelControl<Control>)
      control_.on_ack(w, ack, rate);
    else if (ack.state != SenderState::kRecovery && ack.acked_pkts > 0)
      control_.on_delivered(w, ack);
  }

  void loss(Window& w, LossCause cause, const AckEvent& totals) override {
    if constexpr (OwnTimeout<Control>) {
      if (cause == LossCause::kTimeout) {
        control_.on_timeout(w, totals.now_us, 0);
        return;
      }
    }
    w.ssthresh_pkts = control_.on_loss(w, cause);
    control_.on_state(cause == LossCause::kAcks ? SenderState::kRecovery : SenderState::kLoss, totals);
  }

  void open(Window& w, [[maybe_unused]] bool from_recovery, const AckEvent& totals) override {
    if constexpr (WindowControl<Control>) {
      if (from_recovery) {
        w.cwnd_pkts = w.ssthresh_pkts;
        control_.on_recovered(w);
      }
    }
    control_.on_state(SenderState::kOpen, totals);
  }

  void timers([[maybe_unused]] Window& w, [[maybe_unused]] Us now_us,
              [[maybe_unused]] std::uint32_t in_flight_pkts) override {
    if constexpr (Clocked<Control>)
      while (control_.timer_us() <= now_us) control_.on_timer(w, control_.timer_us(), in_flight_pkts);
  }

  double pacing_bytes_per_s() const override {
    if constexpr (Paced<Control>) return control_.pacing_bytes_per_s();
    return 0.0;
  }

 private:
  Control control_;
};

// The rest of a connection, as simple as can be: what is sent stays in flight until it is acknowledged in order.
class DrivenControl {
 public:
  DrivenControl(const std::string& name, std::uint32_t mss_bytes, std::uint32_t rtt_us, std::uint32_t target_us,
                std::uint64_t seed)
      : now_us_(rtt_us) {
    with_congestion_control(name, [this]<class Control>() { control_ = std::make_unique<Driven<Control>>(); });
    if (!control_) throw std::invalid_argument("there is no congestion control of that name");
    control_->start(window_, {now_us_, rtt_us, mss_bytes, target_us, seed});
    totals_.srtt_us = totals_.min_rtt_us = rtt_us;
    totals_.window_limited = totals_.in_order = true;
    totals_.state = SenderState::kOpen;
  }

  void send(Us now_us, std::uint32_t pkts) {
    advance(now_us);
    for (std::uint32_t i = 0; i < pkts; ++i) control_->sent(now_us);
    totals_.next += pkts;
  }

  // rate_us: 0 = no rate sample. sent_us: when the packets left.
  void ack(Us now_us, std::int32_t rtt_us, std::uint32_t pkts, std::uint32_t lost_pkts, Us rate_us, Us sent_us) {
    advance(now_us);
    AckEvent event = totals_;
    event.rtt_us = rtt_us;
    event.acked_pkts = event.delivered_pkts = pkts;
    event.lost_pkts = lost_pkts;
    event.prior_in_flight_pkts = totals_.next - totals_.una;
    event.una = totals_.una += pkts;
    totals_.next = event.next = std::max(totals_.una, totals_.next);
    event.delivered_total_pkts = totals_.delivered_total_pkts += pkts;
    event.lost_total_pkts = totals_.lost_total_pkts += lost_pkts;
    event.in_flight_pkts = event.next - event.una;
    if (rtt_us >= 0) {
      totals_.srtt_us = event.srtt_us = static_cast<std::uint32_t>(rtt_us);
      totals_.min_rtt_us = event.min_rtt_us = std::min(totals_.min_rtt_us, static_cast<std::uint32_t>(rtt_us));
    }
    RateSample rate;
    rate.delivered_us = now_us;
    if (rate_us > 0) {
      rate.delivered_pkts = event.prior_in_flight_pkts;
      rate.prior_delivered_pkts =
          event.delivered_total_pkts - std::min<std::uint64_t>(event.delivered_total_pkts, rate.delivered_pkts);
      rate.interval_us = rate_us;
    }
    for (std::uint32_t i = 0; i < lost_pkts; ++i) control_->lost(sent_us);
    control_->ack(window_, event, rate, sent_us);
  }

  void loss(bool timeout) {
    totals_.state = timeout ? SenderState::kLoss : SenderState::kRecovery;
    control_->loss(window_, timeout ? LossCause::kTimeout : LossCause::kAcks, totals_);
  }

  void open() {
    const bool from_recovery = totals_.state == SenderState::kRecovery;
    totals_.state = SenderState::kOpen;
    control_->open(window_, from_recovery, totals_);
  }

  void advance(Us now_us) {
    now_us_ = totals_.now_us = now_us;
    control_->timers(window_, now_us, totals_.next - totals_.una);
  }

  std::uint32_t cwnd_pkts() const { return window_.cwnd_pkts; }
  void set_cwnd_pkts(std::uint32_t pkts) { window_.cwnd_pkts = pkts; }
  std::uint32_t ssthresh_pkts() const { return window_.ssthresh_pkts; }
  void set_ssthresh_pkts(std::uint32_t pkts) { window_.ssthresh_pkts = pkts; }
  double pacing_bytes_per_s() const { return control_->pacing_bytes_per_s(); }

 private:
  std::unique_ptr<AnyControl> control_;
  Window window_{kInitialWindowPkts, 0x7FFFFFFF, 0};
  AckEvent totals_{};
  Us now_us_;
};

}  // namespace

void bind_control(nb::module_& m) {
  nb::class_<DelayProfile>(m, "DelayProfile")
      .def(nb::init<>())
      .def("add", &DelayProfile::add, nb::arg("window_pkts"), nb::arg("delay_ms"))
      .def("fit", &DelayProfile::fit, nb::arg("below_pkts"))
      .def("window_pkts", &DelayProfile::window_pkts, nb::arg("delay_ms"))
      .def("delay_ms", &DelayProfile::delay_ms, nb::arg("window_pkts"));
  nb::class_<DrivenControl>(m, "DrivenControl")
      .def(nb::init<const std::string&, std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t>(), nb::arg("name"),
           nb::arg("mss_bytes") = 1448, nb::arg("rtt_us") = 20'000, nb::arg("target_us") = 0, nb::arg("seed") = 0)
      .def("send", &DrivenControl::send, nb::arg("now_us"), nb::arg("pkts"))
      .def("ack", &DrivenControl::ack, nb::arg("now_us"), nb::arg("rtt_us"), nb::arg("pkts") = 1,
           nb::arg("lost_pkts") = 0, nb::arg("rate_us") = 0, nb::arg("sent_us") = 0)
      .def("loss", &DrivenControl::loss, nb::arg("timeout") = false)
      .def("open", &DrivenControl::open)
      .def("advance", &DrivenControl::advance, nb::arg("now_us"))
      .def_prop_rw("cwnd_pkts", &DrivenControl::cwnd_pkts, &DrivenControl::set_cwnd_pkts)
      .def_prop_rw("ssthresh_pkts", &DrivenControl::ssthresh_pkts, &DrivenControl::set_ssthresh_pkts)
      .def_prop_ro("pacing_bytes_per_s", &DrivenControl::pacing_bytes_per_s);
}

}  // namespace reinet
