// SPDX-License-Identifier: Apache-2.0
#include "kshim/native/namespaces.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "kshim/native/owned_fd.hpp"

namespace reinet {

namespace {

namespace fs = std::filesystem;
using Visit = std::function<void(const fs::path&)>;
using Inodes = std::set<std::uint64_t>;  // of network namespaces, as /proc/PID/ns/net shows them

bool over(Deadline until) { return std::chrono::steady_clock::now() >= until; }

// What vanishes while it is looked at, as processes do, is passed over.
void each_entry(const fs::path& folder, const Visit& visit) {
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    visit(entry->path());
    if (ignored) return;
  }
}

void each_process(Deadline until, const Visit& visit) {
  each_entry("/proc", [&](const fs::path& process) {
    if (std::isdigit(static_cast<unsigned char>(process.filename().c_str()[0])) && !over(until)) visit(process);
  });
}

std::uint64_t inode_of(int fd) {
  struct stat found{};
  return fd >= 0 && !fstat(fd, &found) ? found.st_ino : 0;
}

// Each namespace once, those of a thread or a mount first.
class Namespaces {
 public:
  explicit Namespaces(Inodes known) : known_(std::move(known)) {}

  // The inode before the descriptor: most threads live in namespaces that are known.
  void add(const fs::path& path) {
    struct stat found{};
    if (!stat(path.c_str(), &found) && !known_.count(found.st_ino)) add(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  void add(int fd) {
    OwnedFd owned{fd};
    const std::uint64_t inode = inode_of(fd);
    if (inode && known_.insert(inode).second) found_.push_back(std::move(owned));
  }

  void add_inhabited(Deadline until);
  void add_held(Deadline until);

  const std::vector<OwnedFd>& found() const { return found_; }

 private:
  Inodes known_;
  std::vector<OwnedFd> found_;
};

Inodes own() {
  const OwnedFd fd{open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)};
  return {inode_of(fd.fd)};
}

// Returns whether each had its turn. A deadline that is over already may have cut the search for them short, too.
bool run_in(const std::vector<OwnedFd>& namespaces, const std::function<void()>& work, Deadline until) {
  bool in_time = !over(until);
  if (namespaces.empty()) return in_time;
  std::exception_ptr failure;
  std::thread([&] {
    try {
      for (const OwnedFd& one : namespaces)
        if (in_time = in_time && !over(until); in_time && !setns(one.fd, CLONE_NEWNET)) work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  return in_time;
}

// Returns the places at which namespaces are mounted; mountinfo writes blanks and the like as octal numbers.
std::vector<std::string> mounted() {
  std::vector<std::string> places;
  std::ifstream table("/proc/self/mountinfo");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string skipped, root, place;
    fields >> skipped >> skipped >> skipped >> root >> place;
    if (root.rfind("net:[", 0) != 0) continue;
    std::string plain;
    for (std::size_t i = 0; i < place.size(); i++) {
      if (place[i] != '\\') {
        plain += place[i];
      } else {
        plain += static_cast<char>(std::stoi(place.substr(i + 1, 3), nullptr, 8));
        i += 3;
      }
    }
    places.push_back(plain);
  }
  return places;
}

// Returns the namespace behind another process's descriptor of a namespace or of a socket; -1 = it is neither.
int open_behind(int process, const fs::path& descriptor) {
  std::error_code gone;
  const std::string target = fs::read_symlink(descriptor, gone).string();
  if (target.rfind("net:[", 0) == 0) return open(descriptor.c_str(), O_RDONLY | O_CLOEXEC);
  if (target.rfind("socket:[", 0) != 0 || process < 0) return -1;
  const OwnedFd socket{
      static_cast<int>(syscall(SYS_pidfd_getfd, process, std::atoi(descriptor.filename().c_str()), 0))};
  return socket.fd < 0 ? -1 : ioctl(socket.fd, SIOCGSKNS);
}

void Namespaces::add_inhabited(Deadline until) {
  for (const std::string& place : mounted()) add(fs::path(place));
  each_process(until, [&](const fs::path& process) {
    each_entry(process / "task", [&](const fs::path& thread) { add(thread / "ns" / "net"); });
  });
}

void Namespaces::add_held(Deadline until) {
  each_process(until, [&](const fs::path& process) {
    const OwnedFd pidfd{static_cast<int>(syscall(SYS_pidfd_open, std::atoi(process.filename().c_str()), 0))};
    each_entry(process / "fd", [&](const fs::path& descriptor) {
      if (!over(until)) add(open_behind(pidfd.fd, descriptor));
    });
  });
}

}  // namespace

bool in_inhabited_namespaces(const std::function<void()>& work, Deadline until) {
  Namespaces namespaces(own());
  namespaces.add_inhabited(until);
  return run_in(namespaces.found(), work, until);
}

bool in_reachable_namespaces(const std::function<void()>& work, Deadline until) {
  Namespaces namespaces(own());
  namespaces.add_inhabited(until);
  namespaces.add_held(until);
  return run_in(namespaces.found(), work, until);
}

}  // namespace reinet
