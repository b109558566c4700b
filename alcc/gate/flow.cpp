// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/flow.hpp"

#include <algorithm>
#include <new>

#include "alcc/gate/futex.hpp"
#include "alcc/gate/process.hpp"
#include "kshim/cap.h"

namespace reinet::alcc {

namespace {

void tell_epoll(const Registration& r, std::uint32_t events) {
  const int epfd = process().table.fd_of(r.epoll, r.generation);
  if (epfd < 0) return;
  epoll_event event{events, r.data};
  if (!(events & EPOLLEXCLUSIVE)) {
    syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_MOD, r.fd, &event);
    return;
  }
  // The kernel changes no such registration; made anew it tells at once what is ready, as a changed one does.
  if (syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, r.fd, &event) == 0)
    syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, r.fd, &event);
}

}  // namespace

void Flow::reset(std::uint64_t new_cookie) {
  forget_connection();
  cookie = new_cookie;
  fds.clear();
  registrations.clear();
  armed = false;
  exempt_ = nullptr;
  active_ = bounded_ = false;
  if (turn) end_turn();  // else nobody waits for it
  refusals_ = 0;
  pending_bytes_ = late_bytes_ = 0;
  wake(openings);  // whoever still waits looks again, and finds another cookie
}

void Flow::forget_connection() {
  leave_daemon();
  ++connections;
  tick_ns = kLeastTickNs;
  stage_ = Stage::fresh;
  early_bytes_ = process().settings.binds_at_once() ? 0 : kEarlyBytes;
  counted_ = false;
  growing_ = {};
  measure_ = Measure{};
  neighbour_ = {};
  law_ = Law{};
  lease_ = void_lease_ = 0;
  void_ = refused_ = false;
  credit_bytes_ = admitted_bytes_ = written_base_ = bypassing_bytes_ = 0;
  missing_.end();
}

void Flow::after_fork() {
  new (&lock) Lock;
  queued = false;
  turn = nullptr;
  ++turns;  // a handler that forked may have interrupted who waits for it
  pending_bytes_ = late_bytes_ = 0;
  slot_ = Link::kNoSlot;  // the parent's
}

void Flow::end_turn() {
  turn = nullptr;
  wake(turns);
}

// Whoever waits has said so under the lock.
void Flow::wake(std::atomic<std::uint32_t>& word) {
  ++word;
  if (waiting > 0) futex_wake_all(word);
}

bool Flow::takes_early(std::uint64_t bytes) {
  std::uint64_t left = early_bytes_.load(std::memory_order_relaxed);
  while (bytes <= left)
    if (early_bytes_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) return true;
  return false;
}

void Flow::sent_early(std::uint64_t taken_bytes) {
  count();
  process().report.bytes += taken_bytes;
}

void Flow::count() {
  if (!counted_.exchange(true)) process().report.flows++;
}

// Bounds what waits unsent in the kernel; an application's own bound stays.
void Flow::bound_backlog(int fd, bool bounded) {
  int bytes = 0;
  socklen_t size = sizeof bytes;
  if (bounded == bounded_ || getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &size) != 0) return;
  if (bytes != (bounded ? 0 : kBacklogBytes)) return;  // 0 = the host's default, no bound
  bytes = bounded ? kBacklogBytes : 0;
  bounded_ = setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes) == 0 && bounded;
}

void Flow::exempt(const char* reason) {
  if (exempt_) return;
  exempt_ = reason;
  if (const int fd = live_fd(); fd >= 0) bound_backlog(fd, false);
  lease_ = 0;
  leave_daemon();
  process().report.exempted(reason);
  open();
}

// Returns whether the flow is one that may be gated.
bool Flow::begin(int fd, std::uint64_t now_ns) {
  KernelView view;
  const auto queued_before = written_bytes(fd, view);  // the queue first: the base is rather too high than too low
  if (!view.read(fd)) {
    exempt("the kernel tells too little of the connection (TCP_INFO of Linux 4.19 or newer)");
    return false;
  }
  if (!view.may_send()) return false;
  stage_ = Stage::running;
  early_bytes_ = 0;
  growing_.takes(view.info);
  const Settings& settings = process().settings;
  const Ends ends = ends_of(fd);
  peer_ = ends.peer;
  const auto named = [&](std::uint16_t port) { return std::ranges::count(settings.ports, port) > 0; };
  count();
  if (!settings.ports.empty() && !named(ends.local_port) && !named(ends.peer_port)) {
    exempt("its ports are not among those of --policy");
    return false;
  }
  if (settings.leaves_capped() && is_capped_in_kernel(fd)) {
    exempt(kCappedInKernel);
    return false;
  }
  if (is_in_repair(fd)) {
    exempt("its state is being restored (TCP_REPAIR)");
    return false;
  }
  written_base_ = queued_before == kUnlimited ? kUnlimited / 2 : queued_before + view.info.tcpi_bytes_acked;
  if (settings.binds_at_once()) bound_backlog(fd, true);
  reinet_flow_stats unused;
  measure_.take(view, now_ns, settings.period, true, 0, unused);
  ask_law(view, now_ns);
  return true;
}

// A published law sees each look, also those between ticks: what it does not know of it would let through twice.
void Flow::ask_law(const KernelView& view, std::uint64_t now_ns) {
  law_.look(view, now_ns, process().settings, cookie);
  renew(now_ns);
}

std::uint32_t Flow::cap_in_force_pkts(std::uint64_t now_ns) const {
  const Settings& settings = process().settings;
  if (exempt_ || !settings.gates() || process().given_up) return 0;
  if (settings.always && settings.law == Settings::Law::fixed) return settings.fixed_pkts;
  return void_ ? 0 : reinet_lease_cap_pkts(lease_in_force(), now_ns);
}

// The daemon's is read at each use, so that it lapses whatever the pacer does.
std::uint64_t Flow::lease_in_force() const {
  if (process().settings.law != Settings::Law::daemon) return lease_;
  std::uint32_t target_us = 0;
  const std::uint64_t lease = process().link.lease(slot_, cookie, target_us);
  return lease == void_lease_ ? 0 : lease;
}

void Flow::leave_daemon() {
  process().link.give_slot(slot_, cookie);
  slot_ = Link::kNoSlot;
}

std::uint64_t Flow::room_under(std::uint32_t cap_pkts, const KernelView& view) const {
  const std::uint64_t mss = view.mss_bytes();
  const std::uint64_t used_pkts = view.in_flight_pkts() + view.waiting_pkts() + (pending_bytes_ + mss - 1) / mss;
  const std::uint64_t most_pkts = cap_pkts + std::min(missing_.pkts(), cap_pkts / 4);
  return used_pkts >= most_pkts ? 0 : (most_pkts - used_pkts) * mss;
}

Room Flow::room(int fd, std::uint64_t want, std::uint64_t now_ns) {
  if (exempt_ || !process().wanted() || (stage_ == Stage::fresh && !begin(fd, now_ns))) return {want};
  const Settings& settings = process().settings;
  const bool asks = settings.law == Settings::Law::published && settings.gates();
  std::uint32_t cap_pkts = cap_in_force_pkts(now_ns);
  const Room uncapped = bounded_ ? Room{std::min(want, kSliceBytes), true} : Room{want};
  if (cap_pkts == 0 && !asks) return uncapped;
  if (cap_pkts != 0 && credit_bytes_ >= want) return {want};
  KernelView view;
  if (!view.read(fd) || !view.may_send()) return {want, false, true};
  if (!growing_.takes(view.info)) {
    forget_connection();
    return room(fd, want, now_ns);
  }
  if (asks) {  // also where its lease has lapsed because nothing was sent
    ask_law(view, now_ns);
    cap_pkts = cap_in_force_pkts(now_ns);
    if (cap_pkts == 0) return uncapped;
  }
  credit_bytes_ = room_under(cap_pkts, view);
  missing_.look(now_ns, credit_bytes_);
  if (credit_bytes_ >= want) return {want};
  return {credit_bytes_ - credit_bytes_ % view.mss_bytes()};
}

void Flow::begin_send(std::uint64_t bytes, std::uint64_t now_ns) {
  pending_bytes_ += bytes;
  credit_bytes_ -= std::min(credit_bytes_, bytes);
  missing_.send(bytes);
  if (stage_ != Stage::running || exempt_) return;
  if (!active_) {
    active_ = true;
    if (measure_.restart(now_ns) && !process().settings.binds_at_once()) void_ = true;
  }
  if (!queued) process().pacer.push(this, now_ns + kLeastTickNs);
}

void Flow::end_send(std::uint64_t bytes, std::uint64_t taken_bytes) {
  pending_bytes_ -= std::min(pending_bytes_, bytes);
  admitted_bytes_ += taken_bytes;
  process().report.bytes += taken_bytes;
}

void Flow::begin_late(std::uint64_t bytes) { late_bytes_ += bytes; }

void Flow::end_late(std::uint64_t bytes, std::uint64_t taken_bytes, std::uint64_t now_ns) {
  late_bytes_ -= std::min(late_bytes_, bytes);
  if (taken_bytes == 0) return;
  begin_send(taken_bytes, now_ns);
  end_send(taken_bytes, taken_bytes);
}

bool Flow::arm() {
  if (!process().wanted()) return false;  // also in a copy, where nobody would open it
  const auto told_once = [](const Registration& r) {
    return r.epoll->generation == r.generation && is_told_once(r.wanted);
  };
  if (std::ranges::any_of(registrations, told_once)) {
    exempt(kToldOnce);
    return false;
  }
  const std::uint64_t now = now_ns();
  refused_ = true;
  active_ = true;
  if (!law_.grants_packets()) missing_.begin(now);
  if (process().has_io_uring && registrations.empty() && ++refusals_ > kMostRefusals) {
    exempt("an io_uring tells when it may be written, unseen (reinet run --no-io-uring keeps it from the program)");
    return false;
  }
  if (!queued) process().pacer.push(this, now + kLeastTickNs);
  if (!queued) return false;
  if (!armed) process().report.closings++;
  armed = true;
  for (Registration& r : registrations) {
    // Who asked for edges gets none for a buffer that never was full; only who asks for levels would spin.
    if (r.withheld || !(r.wanted & kWritable) || (r.wanted & EPOLLET)) continue;
    r.withheld = true;
    tell_epoll(r, r.wanted & ~kWritable);
  }
  return true;
}

bool Flow::arm_if_full(int fd, std::uint64_t now_ns) {
  if (armed) return true;
  // Most who ask have no cap: they are not to pay for a system call.
  const bool may_bind = cap_in_force_pkts(now_ns) != 0 || process().settings.law == Settings::Law::published;
  if (stage_ != Stage::running || !may_bind || cookie_of(fd) != cookie) return false;
  return room(fd, kSliceBytes, now_ns).bytes == 0 && arm();
}

void Flow::open() {
  if (!armed) return;
  armed = false;
  refusals_ = 0;
  process().report.openings++;
  for (Registration& r : registrations) {
    if (!(r.wanted & kWritable)) continue;
    r.withheld = false;
    tell_epoll(r, r.wanted);  // also makes a new edge
  }
  wake(openings);
}

int Flow::control_epoll(int epfd, int operation, int fd, const epoll_event& asked) {
  Epoll* epoll = process().table.epoll(epfd);
  const std::uint32_t generation = epoll->generation;
  // Before anything was sent it may be for connect() to come to its end, with another one after it (arm).
  if (operation != EPOLL_CTL_DEL && is_told_once(asked.events) && stage_ != Stage::fresh) exempt(kToldOnce);
  const bool withheld = armed && (asked.events & kWritable) && operation != EPOLL_CTL_DEL;
  epoll_event told = asked;
  if (withheld) told.events &= ~kWritable;
  if (syscall(SYS_epoll_ctl, epfd, operation, fd, &told) != 0) return -1;
  const auto is_it = [=](const Registration& r) {
    return r.epoll == epoll && r.generation == generation && r.fd == fd;
  };
  if (operation == EPOLL_CTL_DEL) {
    std::erase_if(registrations, is_it);
    return 0;
  }
  const Registration made{epoll, generation, fd, asked.events, asked.data, withheld};
  if (const auto known = std::ranges::find_if(registrations, is_it); known != registrations.end()) {
    *known = made;
    return 0;
  }
  std::erase_if(registrations, [](const Registration& r) { return r.epoll->generation != r.generation; });
  registrations.push_back(made);
  return 0;
}

// Bytes in the kernel that nobody handed over here: io_uring, kTLS, another process, stdio.
bool Flow::is_bypassed(int fd, const KernelView& view) {
  const std::uint64_t written = written_bytes(fd, view);  // after TCP_INFO: rather too low than too high
  const std::uint64_t known = written_base_ + admitted_bytes_ + pending_bytes_ + late_bytes_;
  if (written == kUnlimited || written <= known || !view.may_send()) return false;
  written_base_ += written - known;
  bypassing_bytes_ += written - known;
  return bypassing_bytes_ > kMostBypassingBytes || is_encrypted_in_kernel(fd);
}

int Flow::live_fd() {
  while (!fds.empty()) {
    if (cookie_of(fds.back()) == cookie) return fds.back();
    process().table.forget(fds.back(), this);  // it was closed behind our back
    fds.pop_back();
  }
  return -1;
}

void Flow::renew(std::uint64_t now_ns) {
  const std::uint32_t cap_pkts = law_.cap_pkts();
  lease_ = cap_pkts ? reinet_lease(now_ns + kLeaseNs, cap_pkts) : 0;
}

void Flow::take_record(reinet_flow_stats& record, const KernelView& view, int fd, std::uint64_t now_ns) {
  Process& p = process();
  record.cookie = cookie;
  record.slot = 0;
  record.peer = peer_;
  record.cap_pkts = cap_in_force_pkts(now_ns);
  const std::uint32_t cap_pkts = p.settings.law == Settings::Law::daemon ? ask_daemon(record) : decide(record);
  p.report.take(record, cap_pkts, view.in_flight_pkts() + view.waiting_pkts());
  if (p.settings.gates() && record.min_rtt_us >= kLeastPathRttUs) bound_backlog(fd, true);  // below it no cap comes
  if (p.settings.leaves_capped() && is_capped_in_kernel(fd)) exempt(kCappedInKernel);
}

std::uint32_t Flow::decide(reinet_flow_stats& record) {
  const Settings& settings = process().settings;
  process().peers->annotate(neighbour_, record);
  record.target_us = law_.target_us(settings, record.min_rtt_us);
  if (has_sample(record)) void_ = false;
  return law_.decide(record, settings);
}

// Hands the record over; returns the cap that is in force until the answer comes.
std::uint32_t Flow::ask_daemon(reinet_flow_stats& record) {
  Link& link = process().link;
  if (slot_ == Link::kNoSlot) slot_ = link.take_slot();
  if (slot_ == Link::kNoSlot) return 0;
  const std::uint64_t lease = link.lease(slot_, cookie, record.target_us);
  record.slot = static_cast<std::uint32_t>(slot_);
  link.set_busy(slot_, true);
  link.push(record);
  if (void_ && has_sample(record)) {  // as the kernel shim does: void until another one is written (kshim/slot.h)
    void_lease_ = lease;
    void_ = false;
  }
  return record.cap_pkts;
}

void Flow::look(std::uint64_t now_ns) {
  KernelView view;
  const int fd = live_fd();
  if (!armed || fd < 0) return;
  const std::uint32_t cap_pkts = cap_in_force_pkts(now_ns);
  if (cap_pkts == 0 || !view.read(fd) || !view.may_send()) return open();
  const std::uint64_t room_bytes = room_under(cap_pkts, view);
  missing_.look(now_ns, room_bytes);
  if (room_bytes > 0) open();
}

std::uint64_t Flow::tick(std::uint64_t now_ns) {
  const int fd = live_fd();
  KernelView view;
  if (fd < 0) {
    process().table.release(this);
    return 0;
  }
  if (exempt_ || !view.read(fd) || !view.may_send()) {
    open();
    active_ = false;
    return 0;
  }
  if (!growing_.takes(view.info)) {
    open();
    forget_connection();
    begin(fd, now_ns);
    return now_ns + kLeastTickNs;
  }
  if (is_bypassed(fd, view)) {
    exempt("bytes reached it that did not pass here: io_uring, kTLS, stdio or another process");
    active_ = false;
    return 0;
  }
  const bool wanted = armed || refused_;
  const bool app_limited =
      !wanted && view.info.tcpi_notsent_bytes == 0 && view.in_flight_pkts() < view.info.tcpi_snd_cwnd;
  refused_ = armed;  // who is woken now has had no time to write at the next look
  const bool afar = process().settings.law == Settings::Law::daemon;
  if (afar) process().link.look(process().settings.daemon, now_ns);
  const reinet_period_config rule = afar ? process().link.period(process().settings.period) : process().settings.period;
  reinet_flow_stats record{};
  if (measure_.take(view, now_ns, rule, app_limited, cap_in_force_pkts(now_ns), record))
    take_record(record, view, fd, now_ns);
  ask_law(view, now_ns);
  const std::uint32_t cap_pkts = cap_in_force_pkts(now_ns);
  // Where looks are further apart than round trips, as on loopback, more than the window itself would be missing.
  if (!cap_pkts || !wanted || view.info.tcpi_min_rtt < kLeastPathRttUs) missing_.end();
  if (cap_pkts) missing_.look(now_ns, room_under(cap_pkts, view));
  missing_.make_up(now_ns, view.info.tcpi_rtt, view.mss_bytes(), measure_.came_bytes() > 0);
  credit_bytes_ = cap_pkts ? room_under(cap_pkts, view) : 0;
  if (cap_pkts) missing_.look(now_ns, credit_bytes_);
  if (cap_pkts == 0 || credit_bytes_ > 0) open();
  active_ = view.outstanding() || armed || pending_bytes_ > 0;
  process().link.set_busy(slot_, active_);
  if (!active_) {
    missing_.end();
    return 0;
  }
  // A peer that has stopped reading, or an outage: nothing is missed by looking seldom.
  const bool silent = view.info.tcpi_last_ack_recv > kSilentMs;
  const bool published = process().settings.law == Settings::Law::published;
  const std::uint64_t part_ns =
      view.info.tcpi_rtt * 1000ULL / (published && armed ? kTicksPerRttOfPublished : kTicksPerRtt);
  // Periods that a timer ends are no longer than asked for.
  const std::uint64_t most_ns =
      rule.packet_timed ? kMostTickNs : std::clamp(rule.min_period_ns, kLeastTickNs, kMostTickNs);
  const std::uint64_t own_ns = silent ? kMostTickNs : std::clamp<std::uint64_t>(part_ns, kLeastTickNs, most_ns);
  const std::uint64_t law_ns = law_.due_ns() > now_ns ? law_.due_ns() - now_ns : 0;
  tick_ns = std::max({std::min(own_ns, law_ns), kLeastTickNs, process().pacer.fair_ns()});
  return now_ns + tick_ns;
}

}  // namespace reinet::alcc
