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

// Of one process. It fills cache lines of its own in the shared memory, for others count at the same time.
struct Sums {
  std::atomic<std::uint64_t> flows{0}, bytes{0}, closings{0}, openings{0}, records{0}, decisions{0}, capped{0},
      not_gated{0}, accepted{0};
  // Bytes of records with a sample, and each of these bytes times its record's queueing delay, and times what of that
  // was due to packets beyond the cap.
  std::atomic<double> delivered_bytes{0}, delay_byte_us{0}, saved_byte_us{0};
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
