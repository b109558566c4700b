// SPDX-License-Identifier: Apache-2.0
#include "alcc/gate/flow.hpp"

#include <algorithm>
#include <bit>
#include <new>

#include "alcc/base/clock.hpp"
#include "alcc/base/futex.hpp"
#include "alcc/gate/process.hpp"

namespace reinet::alcc {

std::uint64_t moment_near(std::uint64_t due_ns, std::uint64_t tick_ns) {
  const std::uint64_t apart_ns = std::min(std::bit_floor(tick_ns / 4), kMostApartNs);
  return (due_ns + apart_ns / 2) / apart_ns * apart_ns;
}

void Flow::reset(std::uint64_t new_cookie) {
  cap_.end();
  cookie = new_cookie;
  forget_connection();
  fds.clear();
  registrations.clear();
  armed = false;
  exempt_ = nullptr;
  active_ = bounded_ = owes_edge_ = false;
  if (turn) end_turn();  // else nobody waits for it
  refusals_ = 0;
  pending_bytes_ = late_bytes_ = 0;
  wake(openings);  // whoever still waits looks again, and finds another cookie
}

void Flow::forget_connection() {
  cap_.end();
  cap_ = LeasedCap(cookie);
  ++connections;
  tick_ns = kLeastTickNs;
  stage_ = Stage::fresh;
  early_bytes_ = process().settings.binds_at_once() ? 0 : kEarlyBytes;
  counted_ = false;
  growing_ = {};
  measure_ = Measure{};
  refused_ = false;
  credit_bytes_ = admitted_bytes_ = written_base_ = bypassing_bytes_ = 0;
  missing_.end();
  looked_for_epolls_ = false;
}

void Flow::after_fork() {
  new (&lock) Lock;
  queued = false;
  turn = nullptr;
  ++turns;  // a handler that forked may have interrupted who waits for it
  pending_bytes_ = late_bytes_ = 0;
  cap_.forget_place();
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
  process().report.sums().bytes += taken_bytes;
}

void Flow::count() {
  if (!counted_.exchange(true)) ++process().report.sums().flows;
}

// Bounds what waits unsent in the kernel; an application's own bound stays.
void Flow::bound_backlog(int fd, bool bounded) {
  if (bounded == bounded_) return;
  const int bytes = bounded ? kBacklogBytes : 0, before = kBacklogBytes - bytes;  // 0 = the host's default, no bound
  if (option_of<int>(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT) != before) return;
  bounded_ = setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes) == 0 && bounded;
}

void Flow::exempt(const char* reason) {
  if (exempt_) return;
  exempt_ = reason;
  if (const int fd = live_fd(); fd >= 0) bound_backlog(fd, false);
  cap_.end();
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
  cap_.know_peer(ends.peer);
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
  cap_.look(view, now_ns);
  return true;
}

std::uint32_t Flow::cap_in_force_pkts(std::uint64_t now_ns) const {
  const Process& p = process();
  return exempt_ || !p.settings.gates() || p.given_up ? 0 : cap_.in_force_pkts(now_ns);
}

std::uint64_t Flow::room_under(std::uint32_t cap_pkts, const KernelView& view) const {
  const std::uint64_t mss = view.mss_bytes();
  const std::uint64_t used_pkts = view.in_flight_pkts() + view.waiting_pkts() + (pending_bytes_ + mss - 1) / mss;
  const std::uint64_t most_pkts = cap_pkts + std::min(missing_.pkts(), cap_pkts / 4);
  return used_pkts >= most_pkts ? 0 : (most_pkts - used_pkts) * mss;
}

Room Flow::room(int fd, std::uint64_t want, std::uint64_t now_ns) {
  if (exempt_ || !process().wanted()) return {want};
  if (stage_ == Stage::fresh && !begin(fd, now_ns))
    return exempt_ ? Room{want} : Room{std::min(want, kEarlyBytes), true};
  const Settings& settings = process().settings;
  const bool asks = settings.law == Settings::Law::published && settings.gates();
  std::uint32_t cap_pkts = cap_in_force_pkts(now_ns);
  const Room uncapped{.bytes = bounded_ ? std::min(want, kSliceBytes) : want, .slice = bounded_};
  if (cap_pkts == 0 && !asks) return uncapped;
  if (cap_pkts != 0 && credit_bytes_ >= want) return {want};
  KernelView view;
  if (!view.read(fd) || !view.may_send()) return {.bytes = want, .ended = true};
  if (!growing_.takes(view.info)) {
    forget_connection();
    return room(fd, want, now_ns);
  }
  if (asks) {  // also where its lease has lapsed because nothing was sent
    cap_.look(view, now_ns);
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
    if (measure_.restart(now_ns) && !process().settings.binds_at_once()) cap_.make_void();
  }
  if (!queued) process().pacer.push(this, now_ns + kLeastTickNs);
}

void Flow::end_send(std::uint64_t bytes, std::uint64_t taken_bytes) {
  pending_bytes_ -= std::min(pending_bytes_, bytes);
  admitted_bytes_ += taken_bytes;
  process().report.sums().bytes += taken_bytes;
}

void Flow::begin_late(std::uint64_t bytes) { late_bytes_ += bytes; }

void Flow::end_late(std::uint64_t bytes, std::uint64_t taken_bytes, std::uint64_t now_ns) {
  late_bytes_ -= std::min(late_bytes_, bytes);
  if (taken_bytes == 0) return;
  begin_send(taken_bytes, now_ns);
  end_send(taken_bytes, taken_bytes);
}

// Tells whether somebody is refused over and over because something that nobody here knows of calls it writable: an
// io_uring where there is one, else an epoll. Looks for that once, or again as long as nobody can look. Who tries again
// without any goes on so.
bool Flow::is_told_unseen() {
  if (!registrations.empty() || ++refusals_ < kMostRefusals) return false;
  refusals_ = 0;
  if (process().has_io_uring) return true;
  if (looked_for_epolls_) return false;
  const std::optional<bool> found = is_in_an_epoll(live_fd());
  looked_for_epolls_ = found.has_value();
  return found.value_or(false);
}

bool Flow::arm(bool waits) {
  if (!process().wanted()) return false;  // also in a copy, where nobody would open it
  if (registrations.has_one_that_is_told_once()) {
    exempt(kToldOnce);
    return false;
  }
  const std::uint64_t now = now_ns();
  refused_ = true;
  active_ = true;
  if (!cap_.grants_packets()) missing_.begin(now);
  if (!waits && is_told_unseen()) {
    exempt(process().has_io_uring
               ? "an io_uring tells when it may be written, unseen (reinet run --no-io-uring keeps it from the program)"
               : "an epoll tells when it may be written, unseen (past the C library, or from before an exec)");
    return false;
  }
  if (!queued) process().pacer.push(this, now + kLeastTickNs);
  if (!queued) return false;
  if (!armed) ++process().report.sums().closings;
  armed = true;
  owes_edge_ |= !waits;
  registrations.withhold();
  return true;
}

bool Flow::arm_if_full(int fd, std::uint64_t now_ns) {
  if (armed) return true;
  // Most who ask have no cap: they are not to pay for a system call.
  const bool may_bind = cap_in_force_pkts(now_ns) != 0 || process().settings.law == Settings::Law::published;
  if (stage_ != Stage::running || !may_bind || cookie_of(fd) != cookie) return false;
  return room(fd, kSliceBytes, now_ns).bytes == 0 && arm(true);
}

void Flow::open() {
  if (!armed) return;
  armed = false;
  refusals_ -= std::min(refusals_, kRefusalsPerOpening);
  ++process().report.sums().openings;
  if (const int fd = registrations.give_back() || !owes_edge_ ? -1 : live_fd(); fd >= 0) make_edge(fd);
  owes_edge_ = false;
  wake(openings);
}

int Flow::control_epoll(int epfd, int operation, int fd, const epoll_event& asked) {
  // Before anything was sent it may be for connect() to come to its end, with another one after it (arm).
  if (operation != EPOLL_CTL_DEL && is_told_once(asked.events) && stage_ != Stage::fresh) exempt(kToldOnce);
  return registrations.control(epfd, operation, fd, asked, armed);
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
  if (exempt_ || !process().wanted() || !view.read(fd) || !view.may_send()) {
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
  refused_ = armed;  // who is woken now has had no time to write at the next look
  const reinet_period_config rule = period_rule(now_ns);
  take_look(view, fd, now_ns, rule, wanted);
  open_if_room(view, now_ns, wanted);
  active_ = view.outstanding() || armed || pending_bytes_ > 0;
  cap_.set_busy(active_);
  if (!active_) {
    missing_.end();
    return 0;
  }
  tick_ns = next_tick_ns(view, now_ns, rule);
  return now_ns + tick_ns;
}

reinet_period_config Flow::period_rule(std::uint64_t now_ns) {
  Process& p = process();
  if (p.settings.law != Settings::Law::daemon) return p.settings.period;
  p.link.look(p.settings.daemon, now_ns);
  return p.link.period(p.settings.period);
}

void Flow::take_look(const KernelView& view, int fd, std::uint64_t now_ns, const reinet_period_config& rule,
                     bool wanted) {
  const bool app_limited =
      !wanted && view.info.tcpi_notsent_bytes == 0 && view.in_flight_pkts() < view.info.tcpi_snd_cwnd;
  const std::uint32_t in_force_pkts = cap_in_force_pkts(now_ns);
  reinet_flow_stats record{};
  if (measure_.take(view, now_ns, rule, app_limited, in_force_pkts, record)) {
    Process& p = process();
    const std::uint32_t cap_pkts = cap_.decide(record, in_force_pkts);
    p.report.take(record, cap_pkts, view.in_flight_pkts() + view.waiting_pkts(), p.settings.records.c_str());
    if (p.settings.gates() && record.min_rtt_us >= kLeastPathRttUs) bound_backlog(fd, true);  // below it no cap comes
    if (p.settings.leaves_capped() && is_capped_in_kernel(fd)) exempt(kCappedInKernel);
  }
  cap_.look(view, now_ns);
}

void Flow::open_if_room(const KernelView& view, std::uint64_t now_ns, bool wanted) {
  const std::uint32_t cap_pkts = cap_in_force_pkts(now_ns);
  // Where looks are further apart than round trips, as on loopback, more than the window itself would be missing.
  if (!cap_pkts || !wanted || view.info.tcpi_min_rtt < kLeastPathRttUs) missing_.end();
  if (cap_pkts) missing_.look(now_ns, room_under(cap_pkts, view));
  missing_.make_up(now_ns, view.info.tcpi_rtt, view.mss_bytes(), measure_.came_bytes() > 0);
  credit_bytes_ = cap_pkts ? room_under(cap_pkts, view) : 0;
  if (cap_pkts) missing_.look(now_ns, credit_bytes_);
  if (cap_pkts == 0 || credit_bytes_ > 0) open();
}

std::uint64_t Flow::next_tick_ns(const KernelView& view, std::uint64_t now_ns, const reinet_period_config& rule) const {
  // A peer that has stopped reading, or an outage: nothing is missed by looking seldom.
  const bool silent = view.info.tcpi_last_ack_recv > kSilentMs;
  const bool published = process().settings.law == Settings::Law::published;
  const std::uint64_t part_ns =
      view.info.tcpi_rtt * 1000ULL / (published && armed ? kTicksPerRttOfPublished : kTicksPerRtt);
  // Periods that a timer ends are no longer than asked for.
  const std::uint64_t most_ns =
      rule.packet_timed ? kMostTickNs : std::clamp(rule.min_period_ns, kLeastTickNs, kMostTickNs);
  const std::uint64_t own_ns = silent ? kMostTickNs : std::clamp<std::uint64_t>(part_ns, kLeastTickNs, most_ns);
  const std::uint64_t law_ns = cap_.due_ns() > now_ns ? cap_.due_ns() - now_ns : 0;
  const std::uint64_t tick_ns = std::max({std::min(own_ns, law_ns), kLeastTickNs, process().pacer.fair_ns()});
  const bool alone = published || process().pacer.fair_ns() == 0;  // a law's own clock is kept, too
  return alone ? tick_ns : moment_near(now_ns + tick_ns, tick_ns) - now_ns;
}

}  // namespace reinet::alcc
