// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_LOSS_PROBE_HPP
#define REINET_LOSS_PROBE_HPP

#include <cstdint>

namespace reinet {

// A tail loss probe on its way (RFC 8985; tcp_process_tlp_ack). One that repeated a segment may have mended its loss,
// which nothing else tells of; if the original arrived too, the receiver says so before it acknowledges more.
class LossProbe {
 public:
  bool out() const { return out_; }

  // repeats: the segment was sent before.
  void on_sent(std::uint32_t seq, bool repeats) {
    end_ = seq + 1;
    repeats_ = repeats;
    out_ = true;
  }

  // A recovery or a timeout has taken over.
  void forget() { out_ = false; }

  // Takes an ACK while the probe is out: all below una has arrived; below duplicate_end, where it is not 0, a segment
  // did so twice. Returns whether the ACK shows that the probe mended a loss.
  bool shows_loss(std::uint32_t una, std::uint32_t duplicate_end) {
    if (una < end_ || (repeats_ && una == end_ && duplicate_end != end_)) return false;
    out_ = false;
    return repeats_ && duplicate_end != end_;
  }

 private:
  std::uint32_t end_ = 0;  // the next segment when the probe was sent
  bool repeats_ = false, out_ = false;
};

}  // namespace reinet

#endif
