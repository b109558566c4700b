// SPDX-License-Identifier: Apache-2.0
#include "kshim/native/host.hpp"

#include <bpf/bpf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kshim/native/failure.hpp"
#include "kshim/slot.h"

namespace reinet {

namespace {

template <typename Info, typename NextId, typename FdById>
void collect(const char* kind, const std::string& prefix, NextId next_id, FdById fd_by_id, std::vector<Loaded>& out) {
  for (std::uint32_t id = 0; !next_id(id, &id);) {
    const int fd = fd_by_id(id);
    if (fd < 0) continue;  // gone since
    Info info{};
    std::uint32_t bytes = sizeof(info);
    const int error = bpf_obj_get_info_by_fd(fd, &info, &bytes);
    close(fd);
    if (!error && std::string(info.name).rfind(prefix, 0) == 0) out.push_back({kind, id, info.name});
  }
}

}  // namespace

std::vector<Loaded> loaded(const std::string& prefix) {
  std::vector<Loaded> out;
  collect<bpf_prog_info>("prog", prefix, bpf_prog_get_next_id, bpf_prog_get_fd_by_id, out);
  collect<bpf_map_info>("map", prefix, bpf_map_get_next_id, bpf_map_get_fd_by_id, out);
  return out;
}

int open_map(std::uint32_t id) { return checked(bpf_map_get_fd_by_id(id), "open BPF map " + std::to_string(id)); }

std::string ask_to_leave(std::uint32_t control_map_id) {
  const std::string map = "BPF map " + std::to_string(control_map_id);
  const int fd = open_map(control_map_id);
  const auto attempt = [&](int result, const char* what) {
    if (!result) return;
    const int reason = errno;
    close(fd);
    throw Failure(reason, what + map);
  };
  bpf_map_info info{};
  std::uint32_t bytes = sizeof(info);
  attempt(bpf_obj_get_info_by_fd(fd, &info, &bytes), "look at ");
  // Another version's may be longer; what is used here stands first in all.
  std::vector<unsigned char> value(std::max<std::size_t>(info.value_size, sizeof(reinet_control)));
  const std::uint32_t zero = 0;
  attempt(bpf_map_lookup_elem(fd, &zero, value.data()), "read ");
  auto* control = reinterpret_cast<reinet_control*>(value.data());
  control->leaving = 1;
  attempt(bpf_map_update_elem(fd, &zero, value.data(), BPF_ANY), "write ");
  close(fd);
  return std::string(control->wrapper, strnlen(control->wrapper, sizeof(control->wrapper)));
}

}  // namespace reinet
