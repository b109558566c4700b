// SPDX-License-Identifier: Apache-2.0
//
// How bytes pass the gate, whatever call brings them. A call behaves as the kernel's own does with a send buffer that
// is as large as the cap: who does not wait gets a short count or EAGAIN, who waits gets everything sent, and a signal,
// a timeout (SO_SNDTIMEO) or the end of the connection cuts it short.
#ifndef REINET_ALCC_PASSAGE_HPP
#define REINET_ALCC_PASSAGE_HPP

#include <alloca.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "alcc/base/clock.hpp"
#include "alcc/base/futex.hpp"
#include "alcc/gate/process.hpp"

namespace reinet::alcc {

// whole: SO_SNDTIMEO counts from the start of the call. file: from that of each of its pieces, as in the kernel's own
// sendfile. single: it may end short, so one piece is all; what it brings may come late (an empty pipe), and others
// write meanwhile.
enum class Call { whole, file, single };

// What the kernel answers to a call before it looks for room, or nothing where it goes on to look.
using Answered = std::optional<ssize_t>;
struct NothingBeforeRoom {
  Answered operator()() const { return {}; }
};

// The error of a call that brings no byte, which is none for want of room.
template <class Ask>
Answered refusal(Ask&& ask) {
  const ssize_t result = ask();
  return result < 0 ? Answered{result} : Answered{};
}

class Passage {
 public:
  Passage(Flow* flow, int fd, std::size_t length, bool dont_wait, Call call, bool asks)
      : flow_(flow),
        fd_(fd),
        length_(length),
        waits_(dont_wait ? Waits::no : Waits::unknown),
        call_(call),
        is_asked_(!asks) {}
  ~Passage() {
    if (!had_turn_) return;
    const std::lock_guard guard(flow_->lock);
    if (has_turn()) flow_->end_turn();
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

  // send(offset, bytes, is_later) hands so many bytes to the kernel; is_later: without SIGPIPE, for bytes were sent.
  // before_room() returns Answered; it is asked once, and only where the call would wait or be refused for want of
  // room.
  template <class Send, class BeforeRoom>
  ssize_t run(Send&& send, BeforeRoom&& before_room) {
    while (true) {
      std::uint64_t bytes = 0;
      switch (admit(bytes)) {
        case Answer::go:
          break;
        case Answer::again:
          continue;
        case Answer::ask:
          if (const Answered answered = before_room()) return *answered;
          continue;
        case Answer::stop:
          return result();
        case Answer::pass:  // not ours any more
          return pass(send);
      }
      Sending sending(flow_, cookie_, bytes, is_single());
      const ssize_t taken = send(sent_, bytes, sent_ > 0);
      const int error = errno;
      sending.end(taken);
      errno = error;
      if (taken <= 0) return sent_ ? result() : taken;  // 0: the file of sendfile or splice has no more
      sent_ += static_cast<std::size_t>(taken);
      if (call_ == Call::file) deadline_ns_ = 0;
      if (is_single() || sent_ == length_ || static_cast<std::uint64_t>(taken) < bytes) return result();
    }
  }

 private:
  static constexpr time_t kForEverS = 1'000'000'000;

  enum class Waits { unknown, yes, no };
  // go: the bytes may be handed over. again: things have moved, look anew. ask: first what the kernel says before it
  // looks for room. stop: the call ends, with what was sent or else with error_. pass: nobody's gate is in the way.
  enum class Answer { go, again, ask, stop, pass };

  // Bytes on their way into the kernel, also where the thread is cancelled in the call.
  class Sending {
   public:
    Sending(Flow* flow, std::uint64_t cookie, std::uint64_t bytes, bool is_late)
        : flow_(flow), cookie_(cookie), bytes_(bytes), taken_(is_late ? 0 : bytes), is_late_(is_late) {}
    ~Sending() {
      const std::lock_guard guard(flow_->lock);
      if (flow_->cookie != cookie_) return;
      if (is_late_)
        flow_->end_late(bytes_, taken_, now_ns());
      else
        flow_->end_send(bytes_, taken_);
    }
    Sending(const Sending&) = delete;
    Sending& operator=(const Sending&) = delete;
    void end(ssize_t taken) { taken_ = taken > 0 ? static_cast<std::uint64_t>(taken) : 0; }

   private:
    Flow* flow_;
    std::uint64_t cookie_, bytes_, taken_;
    bool is_late_;
  };

  // Counted while it waits, also where the thread is cancelled meanwhile.
  class Waiting {
   public:
    explicit Waiting(std::atomic<std::uint32_t>& threads) : threads_(threads) { ++threads_; }
    ~Waiting() { --threads_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    std::atomic<std::uint32_t>& threads_;
  };

  ssize_t result() const {
    if (sent_) return static_cast<ssize_t>(sent_);
    errno = error_;
    return -1;
  }
  // All that is left, past the gate: a call that waits ends short for nobody's sake.
  template <class Send>
  ssize_t pass(Send&& send) {
    if (sent_ == 0) return send(0, length_, false);
    if (!waits()) return result();
    const ssize_t taken = send(sent_, length_ - sent_, true);
    if (taken > 0) sent_ += static_cast<std::size_t>(taken);
    return result();
  }
  Answer stop(int error) {
    error_ = error;
    return Answer::stop;
  }

  bool waits() {
    if (waits_ == Waits::unknown) {
      const int flags = fcntl(fd_, F_GETFL);
      waits_ = flags >= 0 && !(flags & O_NONBLOCK) ? Waits::yes : Waits::no;
    }
    return waits_ == Waits::yes;
  }

  // Returns what the call does next; where it may go on, bytes is how many of what is left it hands over.
  Answer admit(std::uint64_t& bytes) {
    std::unique_lock guard(flow_->lock);
    if (!is_same_socket()) return is_another_socket() ? stop(EBADF) : Answer::pass;
    if (has_turn()) had_turn_ = true;  // also that of a call which a handler interrupted, and perhaps jumped out of
    const std::uint64_t left = length_ - sent_;
    const std::uint64_t now = now_ns();
    const Room room = flow_->room(fd_, left, now);
    if (is_another_connection()) return stop(EPIPE);
    if (room.ended && sent_) return Answer::stop;
    bytes = std::min(room.bytes, left);
    // Nobody else's bytes may come between the pieces of a call that is cut.
    const bool alone = has_turn() || (!flow_->turn && (bytes == left || is_single()));
    if (room.slice && bytes < left && !waits()) bytes = left;  // the kernel takes what it has room for
    const bool is_cut = bytes < left || !alone;
    if (is_cut && deadline_ns_ == 0 && waits()) deadline_ns_ = deadline();  // of the call, not of each piece
    if (sent_ && deadline_ns_ != 0 && now >= deadline_ns_) return Answer::stop;
    const bool takes_turn = !alone && waits();
    const bool would_wait = bytes == 0 || (takes_turn && flow_->turn);
    if (would_wait && sent_ == 0 && !std::exchange(is_asked_, true)) return Answer::ask;
    if (takes_turn) return take_turn(guard);
    if (bytes == 0) return wait_or_refuse(guard);
    is_single() ? flow_->begin_late(bytes) : flow_->begin_send(bytes, now);
    return Answer::go;
  }

  Answer wait_or_refuse(std::unique_lock<Lock>& guard) {
    if (!flow_->arm(waits())) return Answer::pass;
    if (waits()) return wait(guard, flow_->openings);
    if (!is_told_by_signal()) return stop(EAGAIN);
    flow_->exempt(kToldBySignal);
    return Answer::again;  // also where bytes were sent: the kernel is to fill up, or its signal never comes
  }

  // Whoever is refused now waits for SIGIO, which the kernel sends of its own buffer alone.
  bool is_told_by_signal() const {
    const int flags = fcntl(fd_, F_GETFL);
    return flags >= 0 && (flags & O_ASYNC);
  }

  bool is_same_socket() {
    const std::uint64_t cookie = cookie_of(fd_);
    if (cookie_ == 0) cookie_ = cookie;
    if (cookie != 0 && flow_->cookie == cookie) return cookie == cookie_;  // else the number's next socket has the flow
    std::erase(flow_->fds, fd_);
    process().table.forget(fd_, flow_);
    if (flow_->fds.empty() && !flow_->queued) process().table.release(flow_);  // else the pacer does
    return false;
  }
  // It was closed while the call waited: these bytes are not for what has its number now.
  bool is_another_socket() const { return cookie_of(fd_) != cookie_; }

  // It was dissolved and connected anew while the call waited: these bytes are not for the new one's peer.
  bool is_another_connection() {
    if (!connection_) connection_ = flow_->connections;
    return *connection_ != flow_->connections;
  }

  bool is_single() const { return call_ == Call::single; }
  // A turn is a thread's: whoever writes in a handler must not wait for the call that it interrupted.
  bool has_turn() const { return flow_->turn == &inside_gate; }
  // One call after the other, where calls are cut into pieces.
  Answer take_turn(std::unique_lock<Lock>& guard) {
    if (flow_->turn) return wait(guard, flow_->turns);
    flow_->turn = &inside_gate;
    had_turn_ = true;
    return Answer::again;
  }

  // Until the word moves from what it is now, or something ends the call as it would end the kernel's own.
  Answer wait(std::unique_lock<Lock>& guard, std::atomic<std::uint32_t>& word) {
    const std::uint32_t seen = word;
    const Waiting waiting(flow_->waiting);
    guard.unlock();
    const Outside left_gate;
    if (process().is_copy()) return Answer::pass;  // nobody would move it
    timespec left{kForEverS, 0};
    if (deadline_ns_ != kUnlimited) {
      const std::uint64_t now = now_ns();
      if (now >= deadline_ns_) return stop(EAGAIN);
      left = timespec_of(deadline_ns_ - now);
    }
    // A handler ends a write that has sent something, also with SA_RESTART, as it does in the kernel.
    const bool restarts = deadline_ns_ == kUnlimited && sent_ == 0;
    const long result = futex_wait_or_cancel(word, seen, restarts ? nullptr : &left);
    if (result != 0 && errno == EINTR) return stop(EINTR);
    return Answer::again;
  }

  std::uint64_t deadline() const {
    const auto timeout = option_of<timeval>(fd_, SOL_SOCKET, SO_SNDTIMEO).value_or(timeval{});
    const auto us =
        static_cast<std::uint64_t>(timeout.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(timeout.tv_usec);
    return us ? now_ns() + us * 1000 : kUnlimited;
  }

  Flow* flow_;
  int fd_;
  std::size_t length_;
  Waits waits_;
  Call call_;
  bool is_asked_;
  bool had_turn_ = false;
  std::uint64_t cookie_ = 0;
  std::optional<std::uint32_t> connection_;  // of the flow's, at the first look
  std::size_t sent_ = 0;
  std::uint64_t deadline_ns_ = 0;  // by SO_SNDTIMEO, 0 = not asked for yet
  int error_ = EAGAIN;
};

// What the kernel takes of any one call (MAX_RW_COUNT), however much it is given: programs keep counts in an int.
constexpr std::size_t kMostBytesOfCall = INT_MAX & ~std::size_t{4095};

// Hands length bytes to the kernel through the gate of a descriptor that has one, else at once.
template <class Send, class BeforeRoom = NothingBeforeRoom>
ssize_t through_gate(int fd, std::size_t length, bool dont_wait, Send&& send, Call call = Call::whole,
                     BeforeRoom&& before_room = {}) {
  // More than any call takes is an error's -1, of which no piece may be made that the kernel does take.
  if (length == 0 || length > SSIZE_MAX) return send(0, length, false);
  std::optional<Inside> inside(std::in_place);
  if (!*inside) return send(0, length, false);
  Process& p = process();
  const int error = errno;
  Flow* flow = p.table.flow(fd);
  const bool is_early = flow && flow->takes_early(length);
  errno = error;  // a call that succeeds leaves it alone
  if (!flow || is_early || !p.is_here()) {
    inside.reset();  // of the gate it is no concern how long the kernel takes
    const ssize_t taken = send(0, length, false);
    if (is_early && taken > 0) flow->sent_early(static_cast<std::uint64_t>(taken));
    return taken;
  }
  int cancelled;  // PTHREAD_CANCEL_ASYNCHRONOUS must not strike while locks are held
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &cancelled);
  ssize_t result;
  {
    Passage passage(flow, fd, std::min(length, kMostBytesOfCall), dont_wait, call,
                    !std::is_same_v<BeforeRoom, NothingBeforeRoom>);
    result = passage.run(send, before_room);
  }
  if (cancelled != PTHREAD_CANCEL_DEFERRED) pthread_setcanceltype(cancelled, nullptr);
  return result;
}

// The flags of a call's pieces after its first: bytes were sent, so no SIGPIPE, and the socket is connected
// (MSG_FASTOPEN); whoever asked to be told when the kernel needs his memory no more (MSG_ZEROCOPY) counts calls, so
// that only the first may tell.
inline int flags_of(int flags, bool is_later) {
  return is_later ? (flags & ~(MSG_ZEROCOPY | MSG_FASTOPEN)) | MSG_NOSIGNAL : flags;
}

// The part of an array of buffers that starts at a byte and has so many.
class Part {
 public:
  // parts has room for count: on the stack, where the longest array's would not fit into a small thread's.
  Part(iovec* parts, const iovec* buffers, std::size_t count, std::size_t offset, std::size_t bytes) : parts_(parts) {
    for (std::size_t i = 0; i < count && bytes > 0; ++i) {
      const std::size_t skipped = std::min(offset, buffers[i].iov_len);
      offset -= skipped;
      const std::size_t used = std::min(bytes, buffers[i].iov_len - skipped);
      if (used == 0) continue;
      parts_[count_++] = {static_cast<char*>(buffers[i].iov_base) + skipped, used};
      bytes -= used;
    }
  }
  iovec* data() { return parts_; }
  std::size_t count() const { return count_; }

 private:
  iovec* parts_;
  std::size_t count_ = 0;
};

inline std::size_t bytes_of(const iovec* buffers, std::size_t count) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (__builtin_add_overflow(bytes, buffers[i].iov_len, &bytes)) return 0;
  return bytes > SSIZE_MAX ? 0 : bytes;  // the kernel's own call says what is wrong with it
}

inline bool countable(const void* buffers, std::size_t count) { return buffers && count > 0 && count <= IOV_MAX; }

// As sendmsg, through the gate; send is the kernel's own.
template <class Send>
ssize_t message_through_gate(int fd, const msghdr* message, int flags, Send&& send) {
  if (!message || !countable(message->msg_iov, message->msg_iovlen) || (flags & MSG_OOB))
    return send(fd, message, flags);
  const std::size_t length = bytes_of(message->msg_iov, message->msg_iovlen);
  const auto piece_of = [=](std::size_t offset, std::size_t bytes, bool later) {
    if (bytes == length) return send(fd, message, flags);
    auto* parts = static_cast<iovec*>(alloca(message->msg_iovlen * sizeof(iovec)));
    Part part(parts, message->msg_iov, message->msg_iovlen, offset, bytes);
    msghdr piece = *message;
    piece.msg_iov = part.data();
    piece.msg_iovlen = part.count();
    if (later) piece.msg_control = nullptr, piece.msg_controllen = 0;
    return send(fd, &piece, flags_of(flags, later));
  };
  const bool dont_wait = flags & MSG_DONTWAIT;
  if (!message->msg_name && message->msg_controllen == 0 && !(flags & MSG_FASTOPEN))
    return through_gate(fd, length, dont_wait, piece_of);
  const auto before_room = [=] { return refusal([=] { return piece_of(0, 0, false); }); };
  return through_gate(fd, length, dont_wait, piece_of, Call::whole, before_room);
}

}  // namespace reinet::alcc

#endif
