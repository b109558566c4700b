// SPDX-License-Identifier: Apache-2.0
#include "alcc/udp/sender.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "alcc/base/clock.hpp"

namespace reinet::alcc {

namespace {

constexpr Us kSilentUs = 10'000'000;      // longer than outages of cellular links that a flow survives
constexpr Us kDrainUs = 15'000'000;       // for what is out at the end, and lost again and again
constexpr Us kEndAgainUs = 200'000;       // the end goes again so often, TCP's least timeout
constexpr std::uint32_t kRefusals = 3;    // errors in a row: there is no receiver any more, or no way to it
constexpr std::size_t kMarks = 512;       // drawn at a time
constexpr std::uint32_t kMostBurst = 64;  // packets before ACKs are looked at again
constexpr int kMostAcks = 256;            // taken before it is anything else's turn

// The path takes nothing, which may pass: no route or none that leads anywhere (EINVAL is a blackhole's, EACCES that of
// one that is prohibited), an interface or a neighbour that is away, a firewall that drops (EPERM).
bool is_of_the_path(int error) {
  switch (error) {
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case EINVAL:
    case EACCES:
    case EPERM:
      return true;
    default:
      return false;
  }
}

}  // namespace

double RttHistogram::quantile_us(double share) const {
  const auto rank = static_cast<std::uint64_t>(share * static_cast<double>(count_));
  std::uint64_t below = 0;
  for (std::size_t bin = 0; bin < kBins; ++bin)
    if ((below += bins_[bin]) > rank) return (static_cast<double>(bin) + 0.5) * kBinUs;
  return 0.0;
}

UdpSender::UdpSender(int fd, std::uint64_t token, std::string_view law, const Source& source, Us seconds_us,
                     std::uint32_t rtt_us, std::uint64_t seed)
    : fd_(fd), token_(token), law_(make_law(law)), source_(source), start_us_(now_us()) {
  if (!law_) throw std::invalid_argument("no such law");
  const std::uint32_t ip_bytes = std::min(law_->most_ip_bytes(), kMostIpBytes);
  payload_bytes_ = ip_bytes - kIpUdpBytes - static_cast<std::uint32_t>(sizeof(DataHeader));
  deadline_us_ = start_us_ + seconds_us;
  heard_us_ = start_us_;
  law_->start({start_us_, std::max(rtt_us, 1U), ip_bytes - kIpUdpBytes, /*target_us=*/0, seed});
}

bool UdpSender::step(Us most_us) {
  const Us until_us = now_us() + most_us;
  while (stage_ != Stage::done && stage_ != Stage::failed) {
    Us now = now_us();
    take_acks(now);
    on_timers(now);
    advance_stage(now);
    const bool more = transmit(now);
    if (stage_ == Stage::done || stage_ == Stage::failed) break;
    now = now_us();
    if (now >= until_us) return false;
    const Us wait_us = more ? 0 : std::min(std::max(wake_us(), now), until_us) - now;
    pollfd waiting{fd_, static_cast<short>(POLLIN | (blocked_ ? POLLOUT : 0)), 0};
    const timespec wait = timespec_of(1000 * wait_us);
    if (ppoll(&waiting, 1, &wait, nullptr) < 0 && errno == EINTR) return false;
    blocked_ = blocked_ && !(waiting.revents & POLLOUT);
  }
  return true;
}

Us UdpSender::wake_us() const {
  Us us = std::min({law_->timer_us(), law_->timeout_us(), heard_us_ + kSilentUs, drain_until_us_, pace_us_});
  if (stage_ == Stage::sending) us = std::min(us, deadline_us_);
  if (stage_ == Stage::ending) us = std::min(us, end_due_us_);
  return us;
}

void UdpSender::take_acks(Us now) {
  for (int i = 0; i < kMostAcks; ++i) {
    AckHeader ack;
    const ssize_t got = recv(fd_, &ack, sizeof ack, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      take_error(errno);
      if (stage_ == Stage::failed) return;
      continue;
    }
    if (got != sizeof ack || ack.kind != 'A' || ack.token != token_)
      ++counts_.ignored_datagrams;
    else
      take_ack(ack, now);
  }
}

void UdpSender::take_ack(const AckHeader& ack, Us now) {
  if (stage_ == Stage::ending && ack.done == 1 && ack.number == end_number_ && ack.mark == end_mark_) {
    stage_ = Stage::done;
    return;
  }
  Packet* packet = flight_.find(ack.number);
  if (!packet || packet->mark != ack.mark) {
    ++counts_.ignored_datagrams;
    return;
  }
  heard_us_ = now;
  refusals_ = 0;
  unreachable_ = 0;
  const Us rtt_us = now - packet->sent_us;
  const bool late = packet->fate == Fate::lost;
  const std::uint64_t chunk = packet->chunk;
  rtts_.add(rtt_us);
  counts_.late_acks += late;
  law_->delivered(packet->sent_us, now, late);
  if (chunk >= first_chunk_ && !acked_[chunk - first_chunk_]) {
    acked_[chunk - first_chunk_] = true;
    counts_.acked_bytes += chunk_bytes(chunk);
    if (stage_ == Stage::sending) counts_.acked_in_time_bytes = counts_.acked_bytes;
  }
  for (; !acked_.empty() && acked_.front(); ++first_chunk_) acked_.pop_front();
  flight_.acknowledge(ack.number, [&](const Packet& packet) { lose(packet); });
  law_->acked(now, static_cast<std::int32_t>(std::min<Us>(rtt_us, kSilentUs)));
}

void UdpSender::on_timers(Us now) {
  law_->on_timer(now);
  if (law_->timeout_us() > now) return;
  ++counts_.timeouts;
  flight_.time_out(now - std::min(now, law_->given_up_after_us()), [&](const Packet& packet) { lose(packet); });
  law_->time_out(now);
}

void UdpSender::lose(const Packet& packet) {
  ++counts_.lost_pkts;
  unsent_again_.push_back(packet.chunk);
  law_->lost(packet.sent_us);
}

void UdpSender::advance_stage(Us now) {
  if (stage_ == Stage::failed || stage_ == Stage::done) return;
  if (stage_ == Stage::sending && (now >= deadline_us_ || (all_sent() && all_acked()))) {
    counts_.sending_us = std::min(now, deadline_us_) - start_us_;
    stage_ = Stage::draining;
    drain_until_us_ = now + kDrainUs;
  }
  if (stage_ == Stage::draining && all_acked()) {
    stage_ = Stage::ending;
    end_due_us_ = now;
  }
  if (stage_ == Stage::ending && now >= end_due_us_) put_end(now);
  if (now >= drain_until_us_) fail("what was out at the end was not acknowledged in time");
  if (now >= heard_us_ + kSilentUs) {
    const std::string why = unreachable_ ? std::string(": ") + std::strerror(unreachable_) : "";
    fail("nothing was heard of the receiver for 10 s" + why);
  }
}

// Returns whether more could go at once, after ACKs were looked at.
bool UdpSender::transmit(Us now) {
  pace_us_ = kNever;
  if (stage_ != Stage::sending && stage_ != Stage::draining) return false;
  for (std::uint32_t i = 0; i < kMostBurst; ++i) {
    std::uint64_t chunk;
    if (blocked_ || law_->in_flight_pkts() >= law_->window_pkts() || !next_chunk(chunk, now)) return false;
    const double bytes_per_s = law_->pacing_bytes_per_s();
    const bool paced = bytes_per_s > 0.0 && !pacer_.may_send(now, law_->min_burst_pkts());
    if (paced) pace_us_ = pacer_.next_us();
    if (paced || !put(chunk, now)) {
      unsent_again_.push_front(chunk);
      return false;
    }
    if (bytes_per_s > 0.0) pacer_.on_sent(payload_bytes_ + sizeof(DataHeader), bytes_per_s);
  }
  return true;
}

// Finds what goes next, taking it from what is to go again; new data begins with a new chunk.
bool UdpSender::next_chunk(std::uint64_t& chunk, Us now) {
  while (!unsent_again_.empty()) {
    chunk = unsent_again_.front();
    unsent_again_.pop_front();
    if (chunk >= first_chunk_ && !acked_[chunk - first_chunk_]) return true;  // else its ACK came late
  }
  chunk = new_chunk();
  if (stage_ != Stage::sending || now >= deadline_us_ || all_sent()) return false;
  if ((acked_.size() + 1) * payload_bytes_ > kMostAheadBytes) return false;
  acked_.push_back(false);
  return true;
}

// Returns whether the packet went out.
bool UdpSender::put(std::uint64_t chunk, Us now) {
  DataHeader header;
  header.length_bytes = static_cast<std::uint16_t>(chunk_bytes(chunk));
  header.token = token_;
  header.number = flight_.next();
  header.mark = new_mark();
  header.offset = chunk * payload_bytes_;
  const std::uint64_t at = source_.endless ? header.offset % source_.size_bytes : header.offset;
  iovec parts[] = {{&header, sizeof header}, {const_cast<std::uint8_t*>(source_.data + at), header.length_bytes}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    const int error = errno;
    const bool full = error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS;
    if (full)
      blocked_ = true;
    else if (error != EINTR)
      take_error(error);
    return false;
  }
  flight_.send({now, header.mark, chunk, Fate::out});
  law_->sent(now);
  ++counts_.sent_pkts;
  return true;
}

void UdpSender::put_end(Us now) {
  DataHeader header;
  header.kind = 'E';
  header.token = token_;
  if (end_mark_ == 0) end_mark_ = new_mark();
  header.number = end_number_ = flight_.next();
  header.mark = end_mark_;
  header.offset = end_bytes();
  header.cut_short = unsent_bytes() > 0;
  if (send(fd_, &header, sizeof header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == ECONNREFUSED)
    if (++refusals_ >= kRefusals) return fail("the receiver left before it was told of the end");
  end_due_us_ = now + kEndAgainUs;
}

// What the socket says instead of taking or giving a packet; a host or a route that is gone for a moment may come back.
void UdpSender::take_error(int error) {
  if (error == EMSGSIZE) return fail("the path's packets are smaller than the law's: its MTU must be 1500 bytes");
  if (is_of_the_path(error)) {
    unreachable_ = error;  // what is not heard for too long ends it
    return;
  }
  if (++refusals_ < kRefusals) return;
  fail(error == ECONNREFUSED ? "nobody receives there any more (the port is closed)"
                             : std::string("it cannot be sent to any more: ") + std::strerror(error));
}

void UdpSender::fail(const std::string& why) {
  stage_ = Stage::failed;
  failure_ = why;
}

std::uint64_t UdpSender::chunk_bytes(std::uint64_t chunk) const {
  const std::uint64_t begin = chunk * payload_bytes_;
  return source_.endless ? payload_bytes_ : std::min<std::uint64_t>(payload_bytes_, source_.size_bytes - begin);
}

std::uint64_t UdpSender::end_bytes() const {
  const std::uint64_t sent = new_chunk() * payload_bytes_;
  return source_.endless ? sent : std::min(sent, source_.size_bytes);
}

std::uint64_t UdpSender::new_mark() {
  if (marks_.empty()) {
    marks_.resize(kMarks);
    auto* bytes = reinterpret_cast<char*>(marks_.data());
    for (std::size_t have = 0; have < kMarks * sizeof marks_[0];) {
      const ssize_t got = getrandom(bytes + have, kMarks * sizeof marks_[0] - have, 0);
      if (got < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
      if (got > 0) have += static_cast<std::size_t>(got);
    }
  }
  const std::uint64_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

}  // namespace reinet::alcc
