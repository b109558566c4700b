// SPDX-License-Identifier: Apache-2.0
//
// The deciders on records and states from elsewhere, so that tests can compare them with those of agents/decide/; and
// what the gate holds on to, so that tests see it let go.
#include <cstddef>
#include <cstdint>

#include "alcc/base/real.hpp"
#include "alcc/gate/process.hpp"
#include "alcc/laws/law.hpp"
#include "alcc/laws/model.hpp"
#include "alcc/laws/published.hpp"
#include "alcc/stats/measure.hpp"

// Fills, for each record of one flow, the target that the settings resolve to and the cap decided on it. Returns 0, or
// -1 for settings that make no sense.
REINET_HOOK int reinet_alcc_replay(const char* text, const reinet_flow_stats* records, std::size_t count,
                                   std::uint32_t* targets_us, std::uint32_t* caps_pkts) {
  const auto settings = reinet::alcc::parse_settings(text);
  if (!settings) return -1;
  reinet::alcc::Law law;
  for (std::size_t i = 0; i < count; ++i) {
    reinet_flow_stats record = records[i];
    law.write_target(record, *settings);
    targets_us[i] = record.target_us;
    caps_pkts[i] = law.decide(record, *settings);
  }
  return 0;
}

// Fills the actions of a model, as the settings have it, for states one after the other. Returns the number of
// values in a state, or -1 for a text that holds no model.
REINET_HOOK int reinet_alcc_act(const char* text, const float* states, std::size_t count, float* actions) {
  const auto model = reinet::alcc::parse_model(text);
  if (!model) return -1;
  const std::size_t size = model->network.inputs();
  for (std::size_t i = 0; i < count; ++i) actions[i] = model->network.act(states + i * size);
  return static_cast<int>(size);
}

// A look at a connection as a published law sees it; counts are lifetime ones.
struct reinet_alcc_law_view {
  std::uint64_t now_ns;
  std::uint32_t segments_out, segments_in, delivered_pkts, in_flight_pkts, srtt_us, min_rtt_us;
};

// Makes and ends a published law, null for an unknown name.
REINET_HOOK void* reinet_alcc_law_new(const char* name) {
  return reinet::alcc::make_law(name) ? new reinet::alcc::PublishedLaw(name, 1) : nullptr;
}
REINET_HOOK void reinet_alcc_law_end(void* law) { delete static_cast<reinet::alcc::PublishedLaw*>(law); }

// Whether its window moves with what is in flight.
REINET_HOOK int reinet_alcc_law_grants(void* law) {
  return static_cast<reinet::alcc::PublishedLaw*>(law)->grants_packets();
}

// Returns the cap that the law has after a look.
REINET_HOOK std::uint32_t reinet_alcc_law_look(void* law, const reinet_alcc_law_view* look) {
  reinet::alcc::KernelView view;
  view.info.tcpi_snd_mss = 1448;
  view.info.tcpi_data_segs_out = look->segments_out;
  view.info.tcpi_segs_in = look->segments_in;
  view.info.tcpi_delivered = look->delivered_pkts;
  view.info.tcpi_unacked = look->in_flight_pkts;
  view.info.tcpi_rtt = look->srtt_us;
  view.info.tcpi_min_rtt = look->min_rtt_us;
  return static_cast<reinet::alcc::PublishedLaw*>(law)->look(view, look->now_ns);
}

// What a look at a connection shows of it; segments of 1000 bytes.
struct reinet_alcc_look {
  std::uint64_t now_ns, acked_bytes, sent_bytes;
  std::uint64_t restarted_ns;  // when data went out with nothing outstanding, 0 = all the time some was
  std::uint32_t segments_in, rtt_us, min_rtt_us, app_limited;
};

// Fills the records that these looks make; returns how many.
REINET_HOOK int reinet_alcc_measure(const reinet_alcc_look* looks, std::size_t count, reinet_flow_stats* records) {
  reinet::alcc::Measure measure;
  int made = 0;
  for (std::size_t i = 0; i < count; ++i) {
    reinet::alcc::KernelView view;
    view.info.tcpi_snd_mss = 1000;
    view.info.tcpi_bytes_acked = looks[i].acked_bytes;
    view.info.tcpi_bytes_sent = looks[i].sent_bytes;
    view.info.tcpi_delivered = static_cast<std::uint32_t>(looks[i].acked_bytes / 1000);
    view.info.tcpi_segs_in = looks[i].segments_in;
    view.info.tcpi_rtt = looks[i].rtt_us;
    view.info.tcpi_min_rtt = looks[i].min_rtt_us;
    view.info.tcpi_unacked = static_cast<std::uint32_t>((looks[i].sent_bytes - looks[i].acked_bytes) / 1000);
    if (looks[i].restarted_ns) measure.restart(looks[i].restarted_ns);
    const bool app_limited = looks[i].app_limited != 0;
    made += measure.take(view, looks[i].now_ns, {REINET_MIN_PERIOD_NS, 1, 0}, app_limited, 0, records[made]);
  }
  return made;
}

// Returns when a look that is due then is made.
REINET_HOOK std::uint64_t reinet_alcc_moment(std::uint64_t due_ns, std::uint64_t tick_ns) {
  return reinet::alcc::moment_near(due_ns, tick_ns);
}

// Returns how many epoll registrations of a connection it knows.
REINET_HOOK std::size_t reinet_alcc_registrations(int fd) {
  reinet::alcc::Flow* flow = reinet::alcc::process().table.known_flow(fd);
  if (!flow) return 0;
  const std::lock_guard guard(flow->lock);
  return flow->registrations.size();
}
