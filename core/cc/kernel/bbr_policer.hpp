// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_BBR_POLICER_HPP
#define REINET_BBR_POLICER_HPP

#include <cstdint>

#include "core/cc/clock.hpp"

namespace reinet {

// BBR's bandwidths are in packets per microsecond x 2^24 (BW_SCALE): 32 bits hold 0.06 packets/s to 3 Tbit/s.
constexpr std::uint32_t kBbrBwShift = 24;

// BBR finds a policer (bbr_lt_bw_sampling in tcp_bbr.c) by two intervals in a row, of 4 to 16 rounds with a fifth lost,
// whose rates are an eighth (bbr_lt_bw_ratio) or 4 kbit/s apart. Their mean is then the bandwidth for 48 rounds.
class PolicerDetector {
 public:
  // Where the connection stands: its last delivery, and counts of its whole life.
  struct Totals {
    Us delivered_us;
    std::uint64_t delivered_pkts, lost_pkts;
  };

  bool found() const { return found_; }
  std::uint32_t bandwidth() const { return bw_; }

  void reset() {
    bw_ = 0;
    found_ = sampling_ = false;
    rounds_ = 0;
  }

  // Once a policer is found: counts a round, and forgets it after the last of 48.
  bool is_outdated_after_round() {
    if (++rounds_ < kRoundsInUse) return false;
    reset();
    return true;
  }

  // Takes an ACK, or a timeout (lost_pkts = 1). Returns true when it shows a policer. bytes_per_s(bw): what that is.
  template <class BytesPerS>
  bool sample(const Totals& now, std::uint32_t lost_pkts, bool round_start, bool app_limited, BytesPerS&& bytes_per_s) {
    if (!sampling_) {  // an interval starts and ends with a loss, when the policer's tokens are used up
      if (lost_pkts == 0) return false;
      start(now);
      sampling_ = true;
    }
    if (app_limited) {
      reset();
      return false;
    }
    if (round_start) ++rounds_;
    if (rounds_ < kMinRounds) return false;
    if (rounds_ > 4 * kMinRounds) {
      reset();
      return false;
    }
    if (lost_pkts == 0) return false;
    const std::uint64_t lost = now.lost_pkts - start_.lost_pkts;
    const std::uint64_t delivered = now.delivered_pkts - start_.delivered_pkts;
    const std::uint64_t interval_us = (now.delivered_us - start_.delivered_us) / kUsPerMs * kUsPerMs;
    if (delivered == 0 || lost * 256 < delivered * kLossOf256 || interval_us == 0) return false;
    return end(now, static_cast<std::uint32_t>((delivered << kBbrBwShift) / interval_us), bytes_per_s);
  }

 private:
  static constexpr std::uint32_t kMinRounds = 4;        // bbr_lt_intvl_min_rtts
  static constexpr std::uint32_t kLossOf256 = 50;       // bbr_lt_loss_thresh: above a fifth of the deliveries
  static constexpr double kDiffBytesPerS = 4000 / 8.0;  // bbr_lt_bw_diff
  static constexpr std::uint32_t kRoundsInUse = 48;     // bbr_lt_bw_max_rtts: then it looks anew

  template <class BytesPerS>
  bool end(const Totals& now, std::uint32_t bw, BytesPerS&& bytes_per_s) {
    if (bw_) {
      const std::uint32_t diff = bw > bw_ ? bw - bw_ : bw_ - bw;
      if (diff <= bw_ / 8 || bytes_per_s(diff) <= kDiffBytesPerS) {
        bw_ = static_cast<std::uint32_t>((std::uint64_t{bw} + bw_) / 2);
        found_ = true;
        rounds_ = 0;
        return true;
      }
    }
    bw_ = bw;
    start(now);
    return false;
  }

  void start(const Totals& now) {
    start_ = now;
    rounds_ = 0;
  }

  bool sampling_ = false;
  bool found_ = false;
  std::uint32_t rounds_ = 0;  // of the interval; once found, of its use
  std::uint32_t bw_ = 0;      // of the interval before; once found, the policer's
  Totals start_{};            // of the interval
};

}  // namespace reinet

#endif
