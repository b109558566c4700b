// SPDX-License-Identifier: Apache-2.0
#include "kshim/native/host.hpp"

#include <bpf/bpf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kshim/native/failure.hpp"
#include "kshim/native/owned_fd.hpp"
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

// The value of a control map. Another version's may be longer; what is used here stands first in all.
class Control {
 public:
  explicit Control(std::uint32_t map_id) : name_("BPF map " + std::to_string(map_id)), map_(open_map(map_id)) {
    bpf_map_info info{};
    std::uint32_t bytes = sizeof(info);
    checked(bpf_obj_get_info_by_fd(map_.fd, &info, &bytes), "look at " + name_);
    value_.resize(std::max<std::size_t>(info.value_size, sizeof(reinet_control)));
    checked(bpf_map_lookup_elem(map_.fd, &zero_, value_.data()), "read " + name_);
  }

  reinet_control& first() { return *reinterpret_cast<reinet_control*>(value_.data()); }
  void write() { checked(bpf_map_update_elem(map_.fd, &zero_, value_.data(), BPF_ANY), "write " + name_); }

 private:
  const std::uint32_t zero_ = 0;
  std::string name_;
  OwnedFd map_;
  std::vector<unsigned char> value_;
};

}  // namespace

std::vector<Loaded> loaded(const std::string& prefix) {
  std::vector<Loaded> out;
  collect<bpf_prog_info>("prog", prefix, bpf_prog_get_next_id, bpf_prog_get_fd_by_id, out);
  collect<bpf_map_info>("map", prefix, bpf_map_get_next_id, bpf_map_get_fd_by_id, out);
  return out;
}

int open_map(std::uint32_t id) { return checked(bpf_map_get_fd_by_id(id), "open BPF map " + std::to_string(id)); }

int count_runs() { return checked(bpf_enable_stats(BPF_STATS_RUN_TIME), "count the runs of BPF programs"); }

void ask_to_leave(std::uint32_t control_map_id) {
  Control control(control_map_id);
  control.first().leaving = 1;
  control.write();
}

std::string wrapper_of(std::uint32_t control_map_id) {
  Control control(control_map_id);
  const char* wrapper = control.first().wrapper;
  return std::string(wrapper, strnlen(wrapper, REINET_CC_NAME_BYTES));
}

std::uint32_t link_of(std::uint32_t control_map_id) { return Control(control_map_id).first().link; }

bool is_linked(std::uint32_t link) {
  std::uint32_t found = 0;
  return link && !bpf_link_get_next_id(link - 1, &found) && found == link;
}

bool is_leaving(std::uint32_t control_map_id) { return Control(control_map_id).first().leaving != 0; }

}  // namespace reinet
