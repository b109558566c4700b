// SPDX-License-Identifier: Apache-2.0
//
// One connection and its gate. The kernel's send buffer is the only queue: what the application may not hand over yet
// stays the application's, which is told so by a short write, by EAGAIN, or by having to wait.
//
//          nothing outstanding                 a write was cut short
//   dormant <-------------- active (ticks) ---------------------------> armed
//      |  a write              ^                                          |
//      +-----------------------+------------------------------------------+
//                                a segment fits under the cap, the cap lapsed or was lifted, or the connection ended:
//                                withheld readiness is given back, who waits is woken
//
// A cap is a lease: the ticks renew it. Flows are type-stable, never unmapped: whoever finds one by a stale pointer
// sees that its cookie is another socket's.
#ifndef REINET_ALCC_FLOW_HPP
#define REINET_ALCC_FLOW_HPP

#include <atomic>
#include <cstdint>
#include <vector>

#include "alcc/base/lock.hpp"
#include "alcc/gate/leased_cap.hpp"
#include "alcc/gate/missing.hpp"
#include "alcc/gate/registrations.hpp"
#include "alcc/stats/kernel_view.hpp"
#include "alcc/stats/measure.hpp"

namespace reinet::alcc {

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
constexpr std::uint64_t kLeastTickNs = 1'000'000;  // a millisecond is 4 packets at 50 Mbit/s
constexpr std::uint64_t kMostTickNs = 10'000'000;
constexpr std::uint32_t kSilentMs = 100;  // without an ACK, looks are kMostTickNs apart
// A published law moves its window at each look: eight a round trip cost Copa 4 % of its throughput (measured).
constexpr std::uint32_t kTicksPerRtt = 8, kTicksPerRttOfPublished = 24;
// Looks at different connections come at common moments, which wake the thread once, and so a program that waits for
// them all: of a hundred slow flows half the CPU time (measured). Two moments are a millisecond apart, or at most a
// quarter of a tick.
constexpr std::uint64_t kMostApartNs = 1 << 20;
std::uint64_t moment_near(std::uint64_t due_ns, std::uint64_t tick_ns);
// What may wait unsent in the kernel while no cap binds: when one comes, the kernel sends that much beyond it. The
// kernel wakes a writer when half of it is left, which is 5 ms at 100 Mbit/s.
constexpr int kBacklogBytes = 128 * 1024;
// What a connection may send before anybody looks at it, ten segments of the common size: an initial window has no
// queue of its own, and most connections of a server send no more. Where a cap binds at once it is looked at from the
// start.
constexpr std::uint64_t kEarlyBytes = 10 * 1448;
// What one call may hand over at a time while no cap binds: a cap that comes meanwhile waits for so much.
constexpr std::uint64_t kSliceBytes = 256 * 1024;
// A program that is refused so often is not asleep while the gate is closed: it may see a socket that is writable, of
// which the gate knows nothing. Who is told at once again has 25 000 refusals within 100 ms where nobody else wants the
// core (measured), for all its connections together.
constexpr std::uint32_t kMostRefusals = 1000;
// So many for each opening are not counted: who sleeps between two openings has a short write at each, and EAGAIN.
constexpr std::uint32_t kRefusalsPerOpening = 4;
// So much may come past the gate by and by, as what git's upload-pack says by stdio before it sends: the window counts
// it as it counts all that is in the kernel. A program that sends so in earnest has it through in a few looks.
constexpr std::uint64_t kMostBypassingBytes = 64 * 1024;
constexpr const char* kCappedInKernel = "the kernel caps it already (a congestion control of reinet's)";
constexpr const char* kToldOnce = "its readiness is told once (EPOLLONESHOT)";
constexpr const char* kToldBySignal = "its readiness is told by a signal (O_ASYNC)";

struct Room {
  std::uint64_t bytes;  // at most what was wanted; less than that only in whole segments
  bool slice = false;   // a call that would wait in the kernel may hand over this much at a time: a cap may come, or a
                        // connection is still to come about
  bool ended = false;   // the connection takes nothing any more
};

class Flow {
 public:
  Lock lock;  // guards all that follows

  std::uint64_t cookie = 0;       // 0 = the flow is free
  std::uint32_t connections = 0;  // moves when the socket has another one
  std::vector<int> fds;
  Registrations registrations;
  std::atomic<bool> armed{false};          // somebody was refused; read without the lock too
  std::atomic<std::uint32_t> openings{0};  // moves when the gate opens
  std::atomic<std::uint64_t> tick_ns{kLeastTickNs};
  bool queued = false;                    // the pacer has it
  std::atomic<std::uint32_t> waiting{0};  // threads, for a word of the flow's to move; read without the lock too

  // Whether so many bytes are of its first ones, which pass without a lock or a look; then they count as sent.
  bool takes_early(std::uint64_t bytes);
  // What the kernel took of them.
  void sent_early(std::uint64_t taken_bytes);
  // Returns how much may be handed over now; fd is one of the flow's.
  Room room(int fd, std::uint64_t want, std::uint64_t now_ns);
  // So many bytes are on their way into the kernel, and so many of them arrived there.
  void begin_send(std::uint64_t bytes, std::uint64_t now_ns);
  void end_send(std::uint64_t bytes, std::uint64_t taken_bytes);
  // The same where nobody knows when they come: others have their room until then.
  void begin_late(std::uint64_t bytes);
  void end_late(std::uint64_t bytes, std::uint64_t taken_bytes, std::uint64_t now_ns);
  // Somebody was refused; readiness is withheld until there is room. waits: in this call, else perhaps for an edge that
  // it is to get. Returns false where nobody would give it back.
  bool arm(bool waits);
  // Somebody asks whether fd, one of the flow's, may be written. Returns whether a write would be refused; then the
  // flow is armed, as by that write.
  bool arm_if_full(int fd, std::uint64_t now_ns);
  void open();
  // Opens the gate if there is room by now; for who waits in slices.
  void look(std::uint64_t now_ns);
  // As epoll_ctl, for fd, one of the flow's: readiness is told as the gate stands, now and later.
  int control_epoll(int epfd, int operation, int fd, const epoll_event& asked);
  // Looks at the connection; returns when the next look is due, 0 = not before somebody writes.
  std::uint64_t tick(std::uint64_t now_ns);
  // From now on the gate is open for good; said once for each reason.
  void exempt(const char* reason);
  // Makes the flow another socket's, or nobody's (0).
  void reset(std::uint64_t new_cookie);
  // In a forked child, where no other thread is: nothing is under way, and locks are free.
  void after_fork();

  // Which thread's call is cut into pieces now, by the address of its inside_gate; others that may wait do so, so that
  // the bytes of two calls do not mix.
  const void* turn = nullptr;
  std::atomic<std::uint32_t> turns{0};  // moves when it ends
  void end_turn();

 private:
  bool begin(int fd, std::uint64_t now_ns);
  void count();
  void wake(std::atomic<std::uint32_t>& word);
  // What is known of the connection is of none any more; the socket's own remains.
  void forget_connection();
  std::uint32_t cap_in_force_pkts(std::uint64_t now_ns) const;
  std::uint64_t room_under(std::uint32_t cap_pkts, const KernelView& view) const;
  void bound_backlog(int fd, bool bounded);
  bool is_bypassed(int fd, const KernelView& view);
  bool is_told_unseen();
  int live_fd();
  // The steps of a tick: what the connection shows becomes a record and that a cap, the gate opens where there is room,
  // and the next tick is set. wanted: somebody was refused since the tick before.
  reinet_period_config period_rule(std::uint64_t now_ns);
  void take_look(const KernelView& view, int fd, std::uint64_t now_ns, const reinet_period_config& rule, bool wanted);
  void open_if_room(const KernelView& view, std::uint64_t now_ns, bool wanted);
  std::uint64_t next_tick_ns(const KernelView& view, std::uint64_t now_ns, const reinet_period_config& rule) const;

  enum class Stage { fresh, running };
  Stage stage_ = Stage::fresh;
  std::atomic<std::uint64_t> early_bytes_{0};  // that may still pass so
  std::atomic<bool> counted_{false};           // among the report's connections
  const char* exempt_ = nullptr;
  Growing growing_;
  Measure measure_;
  LeasedCap cap_;
  bool active_ = false;         // ticks are due
  bool refused_ = false;        // since the last look
  bool owes_edge_ = false;      // somebody who was refused may wait for one
  std::uint32_t refusals_ = 0;  // beyond kRefusalsPerOpening
  bool looked_for_epolls_ = false;
  bool bounded_ = false;  // we set TCP_NOTSENT_LOWAT
  std::uint64_t credit_bytes_ = 0;
  Missing missing_;
  std::uint64_t pending_bytes_ = 0, late_bytes_ = 0;
  std::uint64_t admitted_bytes_ = 0, written_base_ = 0, bypassing_bytes_ = 0;
};

}  // namespace reinet::alcc

#endif
