// SPDX-License-Identifier: Apache-2.0
#include "alcc/link/link.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>
#include <new>

#include "alcc/stats/kernel_view.hpp"

namespace reinet::alcc {

namespace {

constexpr std::uint64_t kLookNs = 500'000'000;  // a daemon that came back is found before its first lease would end
constexpr int kFirstFd = 700;                   // programs count on low numbers; below the usual limit of 1024

// Past our own hooks, and out of the way of programs that count on the lowest number.
int out_of_the_way(int fd) {
  if (fd < 0) return fd;
  const int moved = static_cast<int>(syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kFirstFd));
  if (moved < 0) return fd;
  syscall(SYS_close, fd);
  return moved;
}

// An eventfd has no name of its own. What has no type at all is no file, pipe or socket: a number would be an error
// there, or a count too many.
bool is_nameless(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == 0;
}

}  // namespace

bool Link::prepare() {
  if (memory_.load(std::memory_order_relaxed)) return true;
  const int fd =
      out_of_the_way(static_cast<int>(syscall(SYS_memfd_create, "reinet-alcc", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  const int event = out_of_the_way(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  struct stat status;
  void* mapped = MAP_FAILED;
  if (fd >= 0 && event >= 0 && ftruncate(fd, sizeof(LinkMemory)) == 0 &&
      syscall(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 && fstat(fd, &status) == 0)
    mapped = mmap(nullptr, sizeof(LinkMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {  // it is tried again and again: what it took goes back to the program
    for (const int taken : {fd, event})
      if (taken >= 0) syscall(SYS_close, taken);
    return false;
  }
  memory_fd_ = fd;
  event_fd_ = event;
  memory_inode_ = status.st_ino;
  memory_device_ = status.st_dev;
  auto* memory = static_cast<LinkMemory*>(mapped);
  memory->header.magic = kLinkMagic;
  const std::lock_guard guard(lock_);
  free_slots_.reserve(kLinkSlots);
  for (int slot = static_cast<int>(kLinkSlots); slot-- > 0;) free_slots_.push_back(slot);
  memory_.store(memory, std::memory_order_release);
  return true;
}

bool Link::has_memory_fd() const {
  struct stat status;
  return memory_fd_ >= 0 && fstat(memory_fd_, &status) == 0 && status.st_ino == memory_inode_ &&
         status.st_dev == memory_device_;
}

bool Link::is_connected() const {
  char word;
  return socket_ >= 0 && cookie_of(socket_) == socket_cookie_ &&
         syscall(SYS_recvfrom, socket_, &word, 1, MSG_PEEK | MSG_DONTWAIT, nullptr, nullptr) != 0;
}

void Link::disconnect() {
  if (socket_ >= 0 && cookie_of(socket_) == socket_cookie_) syscall(SYS_close, socket_);
  socket_ = -1;
  connected_ = false;
}

bool Link::connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path || !has_memory_fd() || !is_nameless(event_fd_)) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd =
      out_of_the_way(static_cast<int>(syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (fd < 0) return false;
  socket_ = fd;
  socket_cookie_ = cookie_of(fd);
  if (syscall(SYS_connect, fd, &address, sizeof address) != 0) return false;
  char word = 'M';
  iovec part{&word, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int fds[2] = {memory_fd_, event_fd_};
  std::memcpy(CMSG_DATA(rights), fds, sizeof fds);
  return syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

void Link::look(const std::string& path, std::uint64_t now_ns) {
  if (now_ns - looked_ns_ < kLookNs && looked_ns_ != 0) return;
  looked_ns_ = now_ns;
  if (is_connected()) return;
  disconnect();
  if (!prepare()) return;
  if (connect(path))
    connected_ = true;
  else
    disconnect();
}

int Link::take_slot() {
  const std::lock_guard guard(lock_);
  if (!connected_ || free_slots_.empty()) return kNoSlot;
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void Link::give_slot(int slot, std::uint64_t cookie) {
  if (slot == kNoSlot) return;
  set_busy(slot, false);
  reinet_flow_stats last{};
  last.cookie = cookie;
  last.slot = static_cast<std::uint32_t>(slot);
  last.flags = REINET_FLAG_CLOSED;
  push(last);
  const std::lock_guard guard(lock_);
  free_slots_.push_back(slot);
}

void Link::push(const reinet_flow_stats& record) {
  const std::lock_guard guard(lock_);
  LinkMemory* memory = memory_.load(std::memory_order_relaxed);
  if (!memory || !connected_) return;
  LinkHeader& header = memory->header;
  if (header.written - __atomic_load_n(&header.taken, __ATOMIC_ACQUIRE) >= kLinkRecords) return;
  memory->records[header.written % kLinkRecords] = record;
  __atomic_store_n(&header.written, header.written + 1, __ATOMIC_RELEASE);
  const std::uint64_t one = 1;
  if (is_nameless(event_fd_)) [[maybe_unused]]
    const long rung = syscall(SYS_write, event_fd_, &one, sizeof one);
}

std::uint64_t Link::lease(int slot, std::uint64_t cookie, std::uint32_t& target_us) const {
  const LinkMemory* memory = memory_.load(std::memory_order_acquire);
  std::uint64_t found = 0;
  target_us = 0;
  if (!memory || slot == kNoSlot) return 0;
  if (reinet_cap_read(&memory->caps[slot], cookie, &found, &target_us)) return found;
  target_us = 0;
  return 0;
}

void Link::set_busy(int slot, bool busy) {
  LinkMemory* memory = memory_.load(std::memory_order_acquire);
  if (memory && slot != kNoSlot) __atomic_store_n(&memory->busy[slot], busy ? 1U : 0U, __ATOMIC_RELAXED);
}

reinet_period_config Link::period(const reinet_period_config& otherwise) const {
  const LinkMemory* memory = memory_.load(std::memory_order_acquire);
  if (!memory) return otherwise;
  const std::uint64_t min_period_ns = __atomic_load_n(&memory->header.min_period_ns, __ATOMIC_RELAXED);
  const std::uint64_t packet_timed = __atomic_load_n(&memory->header.packet_timed, __ATOMIC_RELAXED);
  if (min_period_ns == 0) return otherwise;
  return {min_period_ns, packet_timed ? 1U : 0U, 0};
}

void Link::renew() {
  new (&lock_) Lock;
  if (LinkMemory* memory = memory_.exchange(nullptr)) munmap(memory, sizeof *memory);
  if (has_memory_fd()) syscall(SYS_close, memory_fd_);
  if (is_nameless(event_fd_)) syscall(SYS_close, event_fd_);
  memory_fd_ = event_fd_ = -1;
  disconnect();
  free_slots_.clear();
  looked_ns_ = 0;
}

}  // namespace reinet::alcc
