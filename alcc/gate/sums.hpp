// SPDX-License-Identifier: Apache-2.0
//
// What the processes of one command come to, in memory that they share with whoever wants to know (alcc/sums.py): a sum
// is there however its process ends, by a signal too, and in a sandbox that opens no file.
#ifndef REINET_ALCC_SUMS_HPP
#define REINET_ALCC_SUMS_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace reinet::alcc {

// What is counted.
#define REINET_SUM_COUNTS(X) \
  X(flows) X(bytes) X(closings) X(openings) X(records) X(decisions) X(capped) X(not_gated) X(accepted)
// Bytes of records with a sample, and each of these bytes times its record's queueing delay, and times what of that was
// due to packets beyond the cap.
#define REINET_SUM_DELAYS(X) X(delivered_bytes) X(delay_byte_us) X(saved_byte_us)

// Of one process. It fills cache lines of its own in the shared memory, for others count at the same time.
struct Sums {
#define REINET_DECLARE_COUNT(name) std::atomic<std::uint64_t> name{0};
#define REINET_DECLARE_DELAY(name) std::atomic<double> name{0};
  REINET_SUM_COUNTS(REINET_DECLARE_COUNT)
  REINET_SUM_DELAYS(REINET_DECLARE_DELAY)
#undef REINET_DECLARE_COUNT
#undef REINET_DECLARE_DELAY
  std::uint64_t unused[4] = {};
};

// Processes after these share the last place: a server with a process for each connection makes many.
constexpr std::size_t kMostPlaces = 1024;

// Tells this memory, of this layout, from whatever else has its path once who made it is gone.
constexpr std::uint64_t kSumsMagic = 0x0001'736d'7573'6e72;

struct AllSums {
  std::uint64_t magic = 0;              // first, and there before anybody is told of it
  std::atomic<std::uint64_t> taken{0};  // places, counted on beyond the last one
  std::uint64_t unused[14] = {};
  Sums places[kMostPlaces];
};

static_assert(sizeof(Sums) == 128);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

}  // namespace reinet::alcc

#endif
