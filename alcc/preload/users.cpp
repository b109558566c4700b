// SPDX-License-Identifier: Apache-2.0
//
// The calls that change a process's user. The kernel changes a thread's; the C library has all threads do it, and ends
// the process where one of them may not. The pacer's may not where the program has kept capabilities for its own thread
// alone (proftpd). So it ends before such a call, and begins again after it with what its maker may then. So it does
// around what the C library leaves to the kernel (capset): else the pacer's would keep what the program gives up. Some
// namespaces are entered by processes of one thread only: who is refused tries again without the pacer's.
// Who takes descriptors of its own takes the pacer along.
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "alcc/base/real.hpp"
#include "alcc/preload/alone.hpp"

using reinet::alcc::alone;
using reinet::alcc::with_own_descriptors;

namespace {

constexpr int kUsualGroups = 256;

REINET_REAL(setuid);
REINET_REAL(setgid);
REINET_REAL(seteuid);
REINET_REAL(setegid);
REINET_REAL(setreuid);
REINET_REAL(setregid);
REINET_REAL(setresuid);
REINET_REAL(setresgid);
REINET_REAL(setgroups);
REINET_REAL(initgroups);
constinit reinet::alcc::Real<int (*)(void*, const void*)> real_capset{"capset"};  // the headers have none
REINET_REAL(unshare);
REINET_REAL(setns);

template <class Function, class... Arguments>
int alone_if_refused(Function real, Arguments... arguments) {
  const int result = real(arguments...);
  return result != 0 && errno == EINVAL ? alone(real, arguments...) : result;
}

}  // namespace

REINET_HOOK int setuid(uid_t user) noexcept { return alone(real_setuid.get(), user); }
REINET_HOOK int setgid(gid_t group) noexcept { return alone(real_setgid.get(), group); }
REINET_HOOK int seteuid(uid_t user) noexcept { return alone(real_seteuid.get(), user); }
REINET_HOOK int setegid(gid_t group) noexcept { return alone(real_setegid.get(), group); }
REINET_HOOK int setreuid(uid_t real, uid_t effective) noexcept { return alone(real_setreuid.get(), real, effective); }
REINET_HOOK int setregid(gid_t real, gid_t effective) noexcept { return alone(real_setregid.get(), real, effective); }
REINET_HOOK int setresuid(uid_t real, uid_t effective, uid_t saved) noexcept {
  return alone(real_setresuid.get(), real, effective, saved);
}
REINET_HOOK int setresgid(gid_t real, gid_t effective, gid_t saved) noexcept {
  return alone(real_setresgid.get(), real, effective, saved);
}
REINET_HOOK int setgroups(size_t count, const gid_t* groups) noexcept {
  return alone(real_setgroups.get(), count, groups);
}
// Which groups those are the host's name service may take seconds to say, and the pacer is to go on meanwhile.
REINET_HOOK int initgroups(const char* user, gid_t group) {
  if (!reinet::alcc::process().wanted()) return real_initgroups.get()(user, group);
  gid_t usual[kUsualGroups];
  int count = kUsualGroups;
  if (getgrouplist(user, group, usual, &count) >= 0) return setgroups(static_cast<std::size_t>(count), usual);
  auto* groups = static_cast<gid_t*>(std::calloc(static_cast<std::size_t>(count), sizeof(gid_t)));
  const bool found = groups && count <= NGROUPS_MAX && getgrouplist(user, group, groups, &count) >= 0;
  const int result =
      found ? setgroups(static_cast<std::size_t>(count), groups) : alone(real_initgroups.get(), user, group);
  const int error = errno;
  std::free(groups);
  errno = error;
  return result;
}
REINET_HOOK int capset(void* header, const void* data) noexcept { return alone(real_capset.get(), header, data); }
REINET_HOOK int unshare(int flags) noexcept {
  if (flags & CLONE_FILES) return with_own_descriptors([=] { return real_unshare.get()(flags); });
  return alone_if_refused(real_unshare.get(), flags);
}
REINET_HOOK int setns(int fd, int kind) noexcept { return alone_if_refused(real_setns.get(), fd, kind); }
