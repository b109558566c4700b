// SPDX-License-Identifier: Apache-2.0
// What the kernel says of a connection, by TCP_INFO; no privilege is needed for it.
#ifndef REINET_ALCC_KERNEL_VIEW_HPP
#define REINET_ALCC_KERNEL_VIEW_HPP

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "core/flow_stats.h"
#include "core/peers/peer.h"

namespace reinet::alcc {

// The kernel's states in which more may be sent (include/net/tcp_states.h).
constexpr std::uint8_t kEstablished = 1, kCloseWait = 8;
constexpr std::uint8_t kRecoveryFrom = 2;  // TCP_CA_CWR; above it PRR or a timeout owns the window

struct KernelView {
  tcp_info info{};

  // Returns false where the descriptor is no TCP socket any more, or the kernel too old (before 4.19) to count bytes.
  bool read(int fd) {
    socklen_t size = sizeof info;
    std::memset(&info, 0, sizeof info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           size >= offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans;
  }

  bool may_send() const { return info.tcpi_state == kEstablished || info.tcpi_state == kCloseWait; }
  std::uint32_t mss_bytes() const { return std::max(info.tcpi_snd_mss, 1U); }

  // As tcp_packets_in_flight(); SIOCOUTQ would count what was SACKed too and shut the gate in recovery.
  std::uint32_t in_flight_pkts() const {
    const std::int64_t pkts =
        static_cast<std::int64_t>(info.tcpi_unacked) - info.tcpi_sacked - info.tcpi_lost + info.tcpi_retrans;
    return static_cast<std::uint32_t>(std::max<std::int64_t>(pkts, 0));
  }
  // In the send buffer and not sent yet.
  std::uint32_t waiting_pkts() const { return (info.tcpi_notsent_bytes + mss_bytes() - 1) / mss_bytes(); }
  bool outstanding() const { return info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0; }

  // As kshim/bpf/period.bpf.h counts them.
  std::uint64_t delivered_bytes() const {
    return info.tcpi_bytes_acked + static_cast<std::uint64_t>(info.tcpi_sacked) * mss_bytes();
  }
  // The end of what was sent at least once.
  std::uint64_t sent_bytes() const {
    return info.tcpi_bytes_sent - std::min(info.tcpi_bytes_sent, info.tcpi_bytes_retrans);
  }

  std::uint32_t flags() const {
    return (info.tcpi_ca_state >= kRecoveryFrom ? REINET_FLAG_IN_RECOVERY : 0) |
           (info.tcpi_snd_cwnd < info.tcpi_snd_ssthresh ? REINET_FLAG_SLOW_START : 0);
  }
};

// What only grows while a connection lasts: it tells apart those of one socket, which may be dissolved (connect() to
// AF_UNSPEC) and connect anew. 32 bits may come round.
struct Growing {
  std::uint64_t sent_bytes = 0, acked_bytes = 0;
  std::uint32_t segments_in = 0, segments_out = 0, delivered_pkts = 0;

  // Takes a look; returns whether it may be of the same connection as the one before it.
  bool takes(const tcp_info& i) {
    const Growing before = std::exchange(
        *this, {i.tcpi_bytes_sent, i.tcpi_bytes_acked, i.tcpi_segs_in, i.tcpi_data_segs_out, i.tcpi_delivered});
    const auto grew = [](std::uint32_t from, std::uint32_t to) { return static_cast<std::int32_t>(to - from) >= 0; };
    return sent_bytes >= before.sent_bytes && acked_bytes >= before.acked_bytes &&
           grew(before.segments_in, segments_in) && grew(before.segments_out, segments_out) &&
           grew(before.delivered_pkts, delivered_pkts);
  }
};

// Returns an option of the socket, nothing for no socket or where there is no such option.
template <class Value>
std::optional<Value> option_of(int fd, int level, int name) {
  Value value{};
  socklen_t size = sizeof value;
  return getsockopt(fd, level, name, &value, &size) == 0 ? std::optional(value) : std::nullopt;
}

// Returns the name of the socket for its life, 0 for no socket.
inline std::uint64_t cookie_of(int fd) { return option_of<std::uint64_t>(fd, SOL_SOCKET, SO_COOKIE).value_or(0); }

// Returns all bytes that were ever written into the socket, a constant apart; unknown = all ones.
inline std::uint64_t written_bytes(int fd, const KernelView& view) {
  int queued_bytes = 0;
  if (ioctl(fd, SIOCOUTQ, &queued_bytes) != 0 || queued_bytes < 0) return ~std::uint64_t{0};
  return view.info.tcpi_bytes_acked + static_cast<std::uint64_t>(queued_bytes);
}

// Tells whether the kernel caps the socket itself: kshim's wrappers all have such a name.
inline bool is_capped_in_kernel(int fd) {
  char name[16] = "";
  socklen_t size = sizeof name;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0) return false;
  return std::string_view(name, strnlen(name, sizeof name)).starts_with("reinet");
}

// Tells whether the kernel makes TLS records of what is written (kTLS): they are cut where writes are.
inline bool is_encrypted_in_kernel(int fd) {
  char name[16] = "";
  socklen_t size = sizeof name;
  return getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &size) == 0 && std::string_view(name, strnlen(name, size)) == "tls";
}

// Tells whether somebody restores its state (TCP_REPAIR, as CRIU does): what is written is not sent, nor acknowledged.
inline bool is_in_repair(int fd) { return option_of<int>(fd, IPPROTO_TCP, TCP_REPAIR).value_or(0) != 0; }

inline bool is_tcp(int fd) {
  return option_of<int>(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM &&
         option_of<int>(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

// Tells whether it is a connection over several paths (MPTCP), each with a window of its own.
inline bool is_multipath(int fd) { return option_of<int>(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_MPTCP; }

// Returns the ports of both ends and the peer's name (core/peers/peer.h), 0 where unknown.
struct Ends {
  std::uint16_t local_port = 0, peer_port = 0;
  std::uint64_t peer = 0;
};
inline Ends ends_of(int fd) {
  const auto port = [](const sockaddr_storage& a) -> std::uint16_t {
    if (a.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(a).sin_port);
    if (a.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(a).sin6_port);
    return 0;
  };
  Ends ends;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) ends.local_port = port(address);
  size = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return ends;
  ends.peer_port = port(address);
  if (address.ss_family == AF_INET)
    ends.peer = reinet_peer_of_v4(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
  if (address.ss_family == AF_INET6)
    ends.peer = reinet_peer_of_v6(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr.s6_addr32);
  return ends;
}

}  // namespace reinet::alcc

#endif
