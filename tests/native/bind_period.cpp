// SPDX-License-Identifier: Apache-2.0
// One flow's period, fed with ACKs by hand: what the simulator, the daemon's reader and BPF make of period.h is
// compared with this.
#include "core/bindings.hpp"
#include "core/period.h"
#include "driven.hpp"

namespace nb = nanobind;

namespace reinet {
namespace {

class PeriodTracker {
 public:
  PeriodTracker(std::uint64_t min_period_ns, bool packet_timed) : config_{min_period_ns, packet_timed ? 1U : 0U, 0} {}

  // Both return true, and fill the record, when one is due.
  bool on_ack(const reinet_ack& ack, reinet_flow_stats& record) {
    return reinet_period_on_ack(&period_, &config_, &ack, &record);
  }
  bool on_tick(std::uint64_t now_ns, bool outstanding, reinet_flow_stats& record) {
    return reinet_period_on_tick(&period_, now_ns, outstanding, &record);
  }
  void on_restart(std::uint64_t now_ns) { reinet_period_on_restart(&period_, now_ns); }

 private:
  reinet_period_config config_;
  reinet_period period_{};
};

}  // namespace

void bind_period(nb::module_& m) {
  nb::class_<PeriodTracker>(m, "PeriodTracker")
      .def(nb::init<std::uint64_t, bool>())
      // Writes the records that the ACKs cause into out, which has room for one per ACK; returns their number.
      .def("on_acks",
           [](PeriodTracker& self, const Matrix<const std::uint8_t>& acks, const Matrix<std::uint8_t>& out) {
             require_rows_of<reinet_ack>(acks);
             require_rows_of<reinet_flow_stats>(out);
             require(out.shape(0) >= acks.shape(0), "out has fewer rows than acks");
             std::size_t records = 0;
             for (std::size_t i = 0; i < acks.shape(0); ++i) {
               reinet_flow_stats record{};
               if (self.on_ack(record_at<reinet_ack>(acks, i), record)) put_record(out, records++, record);
             }
             return records;
           })
      .def("on_tick",
           [](PeriodTracker& self, std::uint64_t now_ns, bool outstanding, const Matrix<std::uint8_t>& out) {
             require_rows_of<reinet_flow_stats>(out);
             require(out.shape(0) >= 1, "out has no row");
             reinet_flow_stats record{};
             const bool due = self.on_tick(now_ns, outstanding, record);
             if (due) put_record(out, 0, record);
             return due ? 1 : 0;
           })
      .def("on_restart", &PeriodTracker::on_restart);
}

}  // namespace reinet
