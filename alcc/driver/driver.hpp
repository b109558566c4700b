// SPDX-License-Identifier: Apache-2.0
//
// One congestion-control law of core/cc/ in real time, outside the simulator: it is told what its transport sends and
// hears, and says how much may be in flight. The transports are packets over UDP with an ACK each (alcc/udp/) and the
// gate, which sees TCP through TCP_INFO (alcc/laws/published.hpp).
//
//   transport   sent(), then for each ACK  delivered() ... lost() ...  acked()
//               on_timer() at timer_us(), time_out() at timeout_us()
//   law         window_pkts(), pacing_bytes_per_s()
//
// It calls the law as the simulator's sender does (envs/sim/tcp/sender.hpp), and a test holds that both come to the
// same windows. Only laws whose own implementation is a transport over datagrams run here: those ask for neither
// delivery rate samples nor a recovery.
#ifndef REINET_ALCC_DRIVER_HPP
#define REINET_ALCC_DRIVER_HPP

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/cc/congestion_control.hpp"
#include "core/cc/rtt.hpp"

namespace reinet::alcc {

class LawDriver {
 public:
  virtual ~LawDriver() = default;

  // The first round trip has passed: that of the handshake.
  virtual void start(const Start& start) = 0;

  // A packet goes out.
  virtual void sent(Us now_us) = 0;
  // What one ACK tells, and then that it was all. late: the packet had been given up before. rtt_us: negative = none.
  virtual void delivered(Us sent_us, Us now_us, bool late) = 0;
  virtual void lost(Us sent_us) = 0;
  virtual void acked(Us now_us, std::int32_t rtt_us) = 0;

  // The law's own clock, kNever where it has none; all that is due by now happens.
  virtual Us timer_us() const = 0;
  virtual void on_timer(Us now_us) = 0;
  // Nothing was heard for so long that what is out is given up; kNever while nothing is. The transport says lost() for
  // each packet that has been out for given_up_after_us(), the oldest in any case, and then time_out().
  virtual Us timeout_us() const = 0;
  virtual void time_out(Us now_us) = 0;

  virtual std::uint32_t window_pkts() const = 0;
  virtual double pacing_bytes_per_s() const = 0;  // 0 = sends at once
  virtual bool grants_packets() const = 0;        // ControlDefaults::kGrantsPackets
  virtual std::uint32_t min_burst_pkts() const = 0;
  virtual std::uint32_t most_ip_bytes() const = 0;

  std::uint32_t in_flight_pkts() const { return in_flight_pkts_; }
  std::uint64_t delivered_pkts() const { return delivered_pkts_; }
  std::uint64_t lost_pkts() const { return lost_pkts_; }
  std::uint32_t srtt_us() const { return rtt_.srtt_us(); }
  Us given_up_after_us() const { return newest_rtt_us_; }

 protected:
  RttEstimator rtt_;
  std::uint32_t next_ = 0;  // packets sent so far
  std::uint32_t in_flight_pkts_ = 0;
  std::uint64_t delivered_pkts_ = 0, lost_pkts_ = 0;
  Us newest_rtt_us_ = 0;
};

// Returns the law of that name, null where none of that name runs outside the simulator.
std::unique_ptr<LawDriver> make_law(std::string_view name);
std::vector<std::string_view> law_names();

}  // namespace reinet::alcc

#endif
