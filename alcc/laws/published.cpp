// SPDX-License-Identifier: Apache-2.0
#include "alcc/laws/published.hpp"

#include <algorithm>
#include <utility>

#include "alcc/stats/measure.hpp"
#include "core/states/heads.hpp"

namespace reinet::alcc {

namespace {

// After so long without a look, because there was nothing to send, what the law knows of the path is old, and its clock
// would have to catch up: it starts anew.
constexpr Us kForgetUs = 2'000'000;
// How long a receiver's ACK waits for another packet at the most: Linux's own TCP_DELACK_MIN.
constexpr double kMostAckWaitUs = 40'000;

// Returns how much longer than a packet's own the kernel's RTT sample is. A receiver acknowledges every second packet,
// and the sample is of the older one: it has waited for the other. So many ACKs told of so many packets since gap_us
// ago; packets as far apart as they were on average put (packets / ACKs - 1) such distances between both.
double ack_wait_us(Us gap_us, std::uint32_t acks, std::uint32_t pkts) {
  const double spacing_us = static_cast<double>(gap_us) / pkts;
  return std::min((static_cast<double>(pkts) / acks - 1) * spacing_us, kMostAckWaitUs);
}

}  // namespace

std::uint32_t PublishedLaw::look(const KernelView& view, std::uint64_t now_ns) {
  const Us now_us = now_ns / 1000;
  const tcp_info& i = view.info;
  if (!law_ || now_us > looked_us_ + kForgetUs) begin(view, now_us);
  looked_us_ = now_us;
  note_sent(i.tcpi_data_segs_out - std::exchange(segments_out_, i.tcpi_data_segs_out), now_us);
  const std::uint32_t delivered_pkts = i.tcpi_delivered - std::exchange(delivered_pkts_, i.tcpi_delivered);
  const std::uint32_t segments = i.tcpi_segs_in - std::exchange(segments_in_, i.tcpi_segs_in);
  const std::uint32_t before_us = std::exchange(srtt_us_, i.tcpi_rtt);
  // What is in flight now, and what was delivered on the way to it, was out; what else was has been lost.
  const std::size_t accounted_pkts = std::size_t{view.in_flight_pkts()} + delivered_pkts;
  if (out_.size() > accounted_pkts) note_lost(out_.size() - accounted_pkts);
  if (out_.size() < accounted_pkts) note_sent(static_cast<std::uint32_t>(accounted_pkts - out_.size()), now_us);
  if (delivered_pkts > 0) {
    const std::uint32_t samples = std::clamp(segments, 1U, delivered_pkts);
    const double least_us = i.tcpi_min_rtt != 0 && i.tcpi_min_rtt != ~0U ? i.tcpi_min_rtt : 1.0;
    const Us gap_us = now_us - std::exchange(heard_us_, now_us);
    const double sampled_us =
        mean_of_samples_us(before_us, i.tcpi_rtt, samples) - ack_wait_us(gap_us, samples, delivered_pkts);
    const double mean_us = std::clamp(sampled_us, least_us, 1e9);
    note_delivered(delivered_pkts, now_us, static_cast<std::int32_t>(mean_us));
  }
  law_->on_timer(now_us);
  if (law_->timeout_us() <= now_us) time_out(now_us);
  return std::clamp<std::uint32_t>(law_->window_pkts() + given_up_pkts_, 1, kMaxCapPkts);
}

std::uint64_t PublishedLaw::due_ns() const {
  if (!law_) return kNever;
  const Us us = std::min(law_->timer_us(), law_->timeout_us());
  return us == kNever ? kNever : us * 1000;
}

// Begins with what is in flight, as the law that it takes over from had it.
void PublishedLaw::begin(const KernelView& view, Us now_us) {
  law_ = make_law(name_);
  out_.clear();
  given_up_pkts_ = 0;
  segments_in_ = view.info.tcpi_segs_in;
  segments_out_ = view.info.tcpi_data_segs_out;
  delivered_pkts_ = view.info.tcpi_delivered;
  srtt_us_ = view.info.tcpi_rtt;
  heard_us_ = now_us;
  law_->start({now_us, std::max(view.info.tcpi_rtt, 1U), view.mss_bytes(), 0, seed_});
}

void PublishedLaw::note_sent(std::uint32_t pkts, Us now_us) {
  for (std::uint32_t n = 0; n < pkts; ++n) {
    law_->sent(now_us);
    out_.push_back({now_us, false});
  }
}

void PublishedLaw::note_lost(std::size_t pkts) {
  for (; pkts > 0; --pkts) {
    const Out gone = out_.front();
    out_.pop_front();
    if (gone.given_up)
      --given_up_pkts_;
    else
      law_->lost(gone.sent_us);
  }
}

void PublishedLaw::note_delivered(std::uint32_t pkts, Us now_us, std::int32_t rtt_us) {
  for (; pkts > 0; --pkts) {
    const Out came = out_.front();
    out_.pop_front();
    if (came.given_up) --given_up_pkts_;
    law_->delivered(came.sent_us, now_us, came.given_up);
    law_->acked(now_us, rtt_us);
  }
}

// The law gives up what is out; the kernel does not, and goes on repeating it.
void PublishedLaw::time_out(Us now_us) {
  const Us until_us = now_us - std::min(now_us, law_->given_up_after_us());
  bool first = true;
  for (Out& packet : out_) {
    if (packet.given_up || (!first && packet.sent_us > until_us)) continue;
    first = false;
    packet.given_up = true;
    ++given_up_pkts_;
    law_->lost(packet.sent_us);
  }
  law_->time_out(now_us);
}

}  // namespace reinet::alcc
