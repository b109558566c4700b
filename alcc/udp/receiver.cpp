// SPDX-License-Identifier: Apache-2.0
#include "alcc/udp/receiver.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "alcc/base/clock.hpp"

namespace reinet::alcc {

namespace {

constexpr Us kSilentUs = 15'000'000;  // longer than the sender waits
constexpr Us kLingerUs = 500'000;     // after the end: its ACK may be lost, and the sender asks again
constexpr int kMostDatagrams = 64;    // taken before the clock is looked at
// Kept before their turn: whole packets of all that may be ahead, not its bytes one by one.
constexpr std::size_t kMostPieces = kMostAheadBytes / 1024;

// An ACK did not reach the sender, which asks again or is gone: then its silence ends the transfer.
bool is_of_an_ack(int error) {
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN;
}

}  // namespace

UdpReceiver::UdpReceiver(int fd, std::uint64_t token, int out_fd)
    : fd_(fd), out_fd_(out_fd), token_(token), heard_us_(now_us()) {}

bool UdpReceiver::step(Us most_us) {
  std::array<std::uint8_t, 2048> buffer;
  const Us until_us = now_us() + most_us;
  while (failure_.empty()) {
    for (int i = 0; i < kMostDatagrams; ++i) {
      const ssize_t got = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got >= 0) {
        take(buffer.data(), static_cast<std::size_t>(got));
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (errno != EINTR && !is_of_an_ack(errno)) {
        failure_ = std::string("nothing can be received: ") + std::strerror(errno);
        break;
      }
    }
    const Us now = now_us();
    if (done() && now >= heard_us_ + kLingerUs) return true;
    if (now >= heard_us_ + kSilentUs) failure_ = "nothing was heard of the sender for 15 s";
    if (now >= until_us || !failure_.empty()) break;
    const Us due_us = std::min(until_us, heard_us_ + (done() ? kLingerUs : kSilentUs));
    pollfd waiting{fd_, POLLIN, 0};
    const Us wait_us = std::max(due_us, now) - now;
    const timespec wait = timespec_of(1000 * wait_us);
    if (ppoll(&waiting, 1, &wait, nullptr) < 0 && errno == EINTR) return false;
  }
  return !failure_.empty();
}

void UdpReceiver::take(const std::uint8_t* datagram, std::size_t size_bytes) {
  DataHeader header;
  if (size_bytes < sizeof header) {
    ++counts_.ignored_datagrams;
    return;
  }
  std::memcpy(&header, datagram, sizeof header);
  const std::size_t length = header.length_bytes;
  const bool data = header.kind == 'D' && length > 0 && size_bytes == sizeof header + length;
  const bool end = header.kind == 'E' && length == 0 && size_bytes == sizeof header;
  const std::uint64_t limit = counts_.received_bytes + kMostAheadBytes;
  if (header.token != token_ || !(data || end) || header.offset > limit ||
      (end && (header.offset < counts_.received_bytes || (end_known_ && header.offset != end_bytes_))) ||
      (data && end_known_ && header.offset + length > end_bytes_) ||
      (data && header.offset > counts_.received_bytes && ahead_.size() >= kMostPieces)) {
    ++counts_.ignored_datagrams;
    return;
  }
  heard_us_ = now_us();
  if (first_us_ == 0) first_us_ = heard_us_;
  if (data) {
    ++counts_.received_pkts;
    counts_.receiving_us = heard_us_ - first_us_;
    keep(header.offset, datagram + sizeof header, length);
  } else {
    end_known_ = true;
    end_bytes_ = header.offset;
    counts_.cut_short = header.cut_short != 0;
  }
  if (!failure_.empty()) return;  // what could not be written is not acknowledged
  AckHeader ack;
  ack.done = done();
  ack.token = token_;
  ack.number = header.number;
  ack.mark = header.mark;
  (void)!send(fd_, &ack, sizeof ack, MSG_DONTWAIT | MSG_NOSIGNAL);  // one that is lost is as one lost on the way
}

void UdpReceiver::keep(std::uint64_t offset, const std::uint8_t* bytes, std::size_t size_bytes) {
  std::uint64_t& next = counts_.received_bytes;
  if (offset + size_bytes <= next || ahead_.contains(offset)) {
    ++counts_.duplicate_pkts;
    return;
  }
  if (offset > next) {
    ahead_.emplace(offset, std::vector<std::uint8_t>(bytes, bytes + size_bytes));
    return;
  }
  write_out(bytes + (next - offset), size_bytes - (next - offset));
  while (!ahead_.empty() && ahead_.begin()->first <= next) {
    const auto& [at, kept] = *ahead_.begin();
    if (at + kept.size() > next) write_out(kept.data() + (next - at), kept.size() - (next - at));
    ahead_.erase(ahead_.begin());
  }
}

void UdpReceiver::write_out(const std::uint8_t* bytes, std::size_t size_bytes) {
  if (!failure_.empty()) return;
  for (std::size_t done_bytes = 0; out_fd_ >= 0 && done_bytes < size_bytes;) {
    const ssize_t wrote = write(out_fd_, bytes + done_bytes, size_bytes - done_bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      failure_ = std::string("the bytes cannot be written: ") + std::strerror(errno);
      return;
    }
    done_bytes += static_cast<std::size_t>(wrote);
  }
  counts_.received_bytes += size_bytes;
}

}  // namespace reinet::alcc
