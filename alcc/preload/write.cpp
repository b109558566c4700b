// SPDX-License-Identifier: Apache-2.0
//
// The calls that bring bytes into a socket.
#include <alloca.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "alcc/base/real.hpp"
#include "alcc/gate/passage.hpp"

using reinet::alcc::Answered;
using reinet::alcc::bytes_of;
using reinet::alcc::Call;
using reinet::alcc::countable;
using reinet::alcc::message_through_gate;
using reinet::alcc::Part;
using reinet::alcc::refusal;
using reinet::alcc::through_gate;

namespace {

REINET_REAL(write);
REINET_REAL(writev);
REINET_REAL(pwritev2);
REINET_REAL(send);
REINET_REAL(sendto);
REINET_REAL(sendmsg);
REINET_REAL(sendmmsg);
REINET_REAL(sendfile);
REINET_REAL(sendfile64);
REINET_REAL(splice);
REINET_REAL(ppoll);

// A signal's handler that writes while this looks goes straight to the kernel: the look takes locks.
bool is_gated(int fd) {
  const int before = errno;
  const reinet::alcc::Inside inside;
  const bool found = inside && reinet::alcc::process().table.flow(fd);
  errno = before;
  return found;
}

constexpr unsigned kSpliceFlags = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;

// Tells whether bytes may come from a descriptor, or are there now: it is a pipe's end for reading, and that pipe is
// not at its end.
bool may_bring(int fd, bool now) {
  const int flags = fcntl(fd, F_GETFL);
  struct stat found;
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY || fstat(fd, &found) != 0 || !S_ISFIFO(found.st_mode)) return false;
  pollfd asked{fd, POLLIN, 0};
  const timespec none{0, 0};
  return real_ppoll.get()(&asked, 1, &none, nullptr) == 0 ? !now : asked.revents & POLLIN;
}

// Tells whether a file has nothing at or after a place. One without a size may have something (/proc), but no such file
// can be read at once.
bool is_at_end(int fd, off64_t at) {
  struct stat found;
  if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) return false;
  if (found.st_size > 0) return at >= found.st_size;
  struct statfs system;
  if (fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC) return true;  // those cannot either
  char byte;
  const iovec part{&byte, 1};
  return preadv2(fd, &part, 1, at, RWF_NOWAIT) == 0;
}

// What a connection takes of pwritev2's flags; all but RWF_NOWAIT mean nothing to it. Two are newer than many headers.
constexpr int kNoAppend = 0x20, kNoSignal = 0x100;
constexpr int kPwritev2Flags = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND | kNoAppend | kNoSignal;

// As writev; first(parts, count) is the kernel's own call, which brings the first of the pieces.
template <class First>
ssize_t gated_buffers(int fd, const iovec* buffers, int count, bool dont_wait, First&& first) {
  if (!countable(buffers, count > 0 ? static_cast<std::size_t>(count) : 0) || !reinet::alcc::process().wanted())
    return first(buffers, count);
  const auto buffer_count = static_cast<std::size_t>(count);
  const std::size_t length = bytes_of(buffers, buffer_count);
  return through_gate(fd, length, dont_wait, [=](std::size_t offset, std::size_t bytes, bool later) {
    if (bytes == length) return first(buffers, count);
    auto* parts = static_cast<iovec*>(alloca(buffer_count * sizeof(iovec)));
    Part part(parts, buffers, buffer_count, offset, bytes);
    if (!later) return first(part.data(), static_cast<int>(part.count()));
    msghdr piece{};
    piece.msg_iov = part.data();
    piece.msg_iovlen = part.count();
    return real_sendmsg.get()(fd, &piece, MSG_NOSIGNAL | (dont_wait ? MSG_DONTWAIT : 0));
  });
}

template <class Function, class Offset>
ssize_t gated_file(Function real, int to, int from, Offset* offset, std::size_t count) {
  int cancelled;  // sendfile is no cancellation point, and nothing may be unwound through it
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
  const auto send = [=](std::size_t, std::size_t bytes, bool) { return real(to, from, offset, bytes); };
  const auto before_room = [=]() -> Answered {
    if (const Answered refused = refusal([=] { return real(to, from, offset, 0); })) return refused;
    if (is_at_end(from, offset ? *offset : lseek(from, 0, SEEK_CUR))) return 0;
    return {};
  };
  const ssize_t sent = through_gate(to, count, false, send, Call::file, before_room);
  pthread_setcancelstate(cancelled, nullptr);
  return sent;
}

}  // namespace

REINET_HOOK ssize_t write(int fd, const void* data, size_t size) {
  return through_gate(fd, size, false, [=](std::size_t offset, std::size_t bytes, bool later) {
    const char* from = static_cast<const char*>(data) + offset;
    return later ? real_send.get()(fd, from, bytes, MSG_NOSIGNAL) : real_write.get()(fd, from, bytes);
  });
}

REINET_HOOK ssize_t __write(int fd, const void* data, size_t size) { return write(fd, data, size); }

REINET_HOOK ssize_t writev(int fd, const iovec* buffers, int count) {
  return gated_buffers(fd, buffers, count, false,
                       [=](const iovec* parts, int parts_count) { return real_writev.get()(fd, parts, parts_count); });
}

REINET_HOOK ssize_t pwritev2(int fd, const iovec* buffers, int count, off_t offset, int flags) {
  const auto call = [=](const iovec* parts, int parts_count) {
    return real_pwritev2.get()(fd, parts, parts_count, offset, flags);
  };
  // A connection has no other place to write at than the next one.
  if (offset != -1 || (flags & ~kPwritev2Flags)) return call(buffers, count);
  return gated_buffers(fd, buffers, count, flags & RWF_NOWAIT, call);
}

REINET_HOOK ssize_t pwritev64v2(int fd, const iovec* buffers, int count, off64_t offset, int flags) {
  return pwritev2(fd, buffers, count, offset, flags);  // here both are of one size
}

REINET_HOOK ssize_t send(int fd, const void* data, size_t size, int flags) {
  if (flags & MSG_OOB) return real_send.get()(fd, data, size, flags);
  if (flags & MSG_FASTOPEN) return sendto(fd, data, size, flags, nullptr, 0);  // refused before the look for room
  return through_gate(fd, size, flags & MSG_DONTWAIT, [=](std::size_t offset, std::size_t bytes, bool later) {
    return real_send.get()(fd, static_cast<const char*>(data) + offset, bytes, reinet::alcc::flags_of(flags, later));
  });
}

REINET_HOOK ssize_t __send(int fd, const void* data, size_t size, int flags) { return send(fd, data, size, flags); }

REINET_HOOK ssize_t sendto(int fd, const void* data, size_t size, int flags, const sockaddr* to, socklen_t to_size) {
  if (!to && !(flags & MSG_FASTOPEN)) return send(fd, data, size, flags);
  if (flags & MSG_OOB) return real_sendto.get()(fd, data, size, flags, to, to_size);
  const auto piece = [=](std::size_t offset, std::size_t bytes, bool later) {
    const char* from = static_cast<const char*>(data) + offset;
    return real_sendto.get()(fd, from, bytes, reinet::alcc::flags_of(flags, later), to, to_size);
  };
  const auto before_room = [=] { return refusal([=] { return piece(0, 0, false); }); };
  return through_gate(fd, size, flags & MSG_DONTWAIT, piece, Call::whole, before_room);
}

REINET_HOOK ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return message_through_gate(fd, message, flags, real_sendmsg.get());
}

REINET_HOOK int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (!is_gated(fd)) return real_sendmmsg.get()(fd, messages, count, flags);
  unsigned sent = 0;
  for (; sent < std::min<unsigned>(count, IOV_MAX); ++sent) {
    const ssize_t bytes = message_through_gate(fd, &messages[sent].msg_hdr, flags, real_sendmsg.get());
    if (bytes < 0) return sent ? static_cast<int>(sent) : -1;
    messages[sent].msg_len = static_cast<unsigned>(bytes);
    // As in the kernel: what follows a message that was cut short would stand in the place of its rest.
    const msghdr& message = messages[sent].msg_hdr;
    if (messages[sent].msg_len < bytes_of(message.msg_iov, message.msg_iovlen)) return static_cast<int>(sent) + 1;
  }
  return static_cast<int>(sent);
}

REINET_HOOK ssize_t sendfile(int to, int from, off_t* offset, size_t count) {
  return gated_file(real_sendfile.get(), to, from, offset, count);
}

REINET_HOOK ssize_t sendfile64(int to, int from, off64_t* offset, size_t count) {
  return gated_file(real_sendfile64.get(), to, from, offset, count);
}

REINET_HOOK ssize_t splice(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t size, unsigned flags) {
  const auto send = [=](std::size_t, std::size_t bytes, bool) {
    return real_splice.get()(from, from_offset, to, to_offset, bytes, flags);
  };
  const auto before_room = [=]() -> Answered {
    const int error = errno;
    const bool waits = !(flags & SPLICE_F_NONBLOCK);  // for the pipe; the connection has a flag of its own
    const bool looks = !from_offset && !to_offset && !(flags & ~kSpliceFlags) && may_bring(from, !waits);
    errno = error;
    return looks ? Answered{} : send(0, size, false);
  };
  return through_gate(to, size, false, send, Call::single, before_room);
}
