// SPDX-License-Identifier: Apache-2.0
#include "kshim/native/object.hpp"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <optional>
#include <set>
#include <utility>

#include "kshim/native/failure.hpp"
#include "kshim/native/namespaces.hpp"

// The BPF object files, as they were built, inside this library: what was built together is loaded together.
#define REINET_EMBED(name, file)                           \
  asm(".pushsection .rodata\n"                             \
      ".balign 8\n"                                        \
      ".hidden " #name "_begin, " #name                    \
      "_end\n"                                             \
      ".global " #name "_begin, " #name "_end\n" #name     \
      "_begin:\n"                                          \
      ".incbin \"" REINET_BPF_FOLDER "/" file "\"\n" #name \
      "_end:\n"                                            \
      ".popsection\n");                                    \
  extern "C" const char name##_begin[], name##_end[]

// By the form of the kernel's tcp_congestion_ops, which each has since that Linux (CMakeLists.txt).
REINET_EMBED(reinet_bpf_6_4, "reinet-6.4.bpf.o");
REINET_EMBED(reinet_bpf_6_10, "reinet-6.10.bpf.o");
REINET_EMBED(reinet_bpf_7_1, "reinet-7.1.bpf.o");

namespace reinet {

namespace {

constexpr std::uint32_t link_flag = 1U << 13;   // BPF_F_LINK, newer than Debian 12's headers
constexpr std::uint32_t link_attach_type = 44;  // BPF_STRUCT_OPS
constexpr std::uint32_t most_cgroups = 1024;    // chosen by one loader; a configuration names a few
// Entering a namespace and looking at its sockets takes less than a millisecond; hosts with a thousand namespaces are
// the largest there are. Whoever stops the daemon waits for this.
constexpr auto longest_sweep = std::chrono::seconds(2);

// What libbpf complained of during the last load; the verifier's reason is in there.
thread_local std::string complaints;

int keep_complaint(libbpf_print_level level, const char* format, va_list arguments) {
  char line[512];
  if (level != LIBBPF_WARN) return 0;
  std::vsnprintf(line, sizeof(line), format, arguments);
  complaints += line;
  return 0;
}

[[noreturn]] void fail(int error, const std::string& attempted) {
  std::string text = attempted;
  if (!complaints.empty()) text += "\n" + complaints;
  throw Failure(std::abs(error), text);
}

// The kernel's structure behind a struct_ops map: where its members lie in the map's value.
class KernelOps {
 public:
  KernelOps() : btf_(btf__load_vmlinux_btf(), btf__free) {
    if (!btf_) fail(errno, "read the kernel's BTF");
    base_ = find("bpf_struct_ops_tcp_congestion_ops", "data").offset;
  }

  std::size_t offset(const char* member) const { return base_ + find("tcp_congestion_ops", member).offset; }

  bool has(const char* member) const { return look_up("tcp_congestion_ops", member).has_value(); }

  // How many arguments the function behind a member takes.
  int arguments(const char* member) const {
    const btf_type* pointer = btf__type_by_id(btf_.get(), find("tcp_congestion_ops", member).type);
    return btf_vlen(btf__type_by_id(btf_.get(), pointer->type));
  }

 private:
  struct Member {
    std::size_t offset;
    std::uint32_t type;
  };

  Member find(const char* structure, const char* member) const {
    if (const std::optional<Member> found = look_up(structure, member)) return *found;
    fail(ENOENT, std::string("find ") + structure + "." + member + " in the kernel's BTF");
  }

  std::optional<Member> look_up(const char* structure, const char* member) const {
    const int id = btf__find_by_name_kind(btf_.get(), structure, BTF_KIND_STRUCT);
    if (id < 0) fail(id, std::string("find struct ") + structure + " in the kernel's BTF");
    const btf_type* type = btf__type_by_id(btf_.get(), static_cast<std::uint32_t>(id));
    const btf_member* members = btf_members(type);
    for (int i = 0; i < btf_vlen(type); i++)
      if (!std::strcmp(btf__name_by_offset(btf_.get(), members[i].name_off), member))
        return Member{btf_member_bit_offset(type, static_cast<std::uint32_t>(i)) / 8, members[i].type};
    return std::nullopt;
  }

  std::unique_ptr<btf, decltype(&btf__free)> btf_;
  std::size_t base_ = 0;
};

// Begin and end of the programs that were built for this kernel's structure.
std::pair<const char*, const char*> fitting(const KernelOps& kernel) {
  if (kernel.has("cwnd_event_tx_start")) return {reinet_bpf_7_1_begin, reinet_bpf_7_1_end};
  if (kernel.arguments("cong_control") == 4) return {reinet_bpf_6_10_begin, reinet_bpf_6_10_end};
  return {reinet_bpf_6_4_begin, reinet_bpf_6_4_end};
}

// A wrapper's callbacks are called after its structure and their member of it. Empty: no callback of this structure.
std::string member_of(const std::string& structure, const bpf_program* program) {
  const std::string name = bpf_program__name(program);
  return name.rfind(structure + "_", 0) == 0 ? name.substr(structure.size() + 1) : "";
}

// libbpf before 1.2 knows no links for struct_ops, and none lets the name be chosen at run time; so the map's value is
// written here.
void prepare(const KernelOps& kernel, bpf_object* object, const std::string& structure, const std::string& name) {
  const bpf_map* map = bpf_object__find_map_by_name(object, structure.c_str());
  std::vector<unsigned char> value(bpf_map__value_size(map));
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object) {
    const std::string member = member_of(structure, program);
    if (member.empty()) continue;
    const std::uint64_t fd = static_cast<std::uint64_t>(bpf_program__fd(program));
    std::memcpy(&value[kernel.offset(member.c_str())], &fd, sizeof(fd));
  }
  std::memcpy(&value[kernel.offset("name")], name.c_str(), name.size() + 1);
  const std::uint32_t zero = 0;
  checked(bpf_map_update_elem(bpf_map__fd(map), &zero, value.data(), BPF_ANY), "prepare " + name);
}

void copy_name(char (&to)[REINET_CC_NAME_BYTES], const std::string& name) {
  if (name.empty() || name.size() >= sizeof(to)) throw Failure(ENAMETOOLONG, "name a congestion control " + name);
  std::memset(to, 0, sizeof(to));
  std::memcpy(to, name.data(), name.size());
}

// A constant of the programs, found by name in the object's own BTF; writable until the object is loaded.
template <typename T>
T& constant(bpf_object* object, const char* name) {
  std::size_t bytes = 0;
  bpf_map* map = bpf_object__find_map_by_name(object, "reinet.rodata");
  char* data = map ? static_cast<char*>(const_cast<void*>(bpf_map__initial_value(map, &bytes))) : nullptr;
  const btf* types = bpf_object__btf(object);
  const int id = btf__find_by_name_kind(types, ".rodata", BTF_KIND_DATASEC);
  if (data && id > 0) {
    const btf_type* type = btf__type_by_id(types, static_cast<std::uint32_t>(id));
    const btf_var_secinfo* variables = btf_var_secinfos(type);
    for (int i = 0; i < btf_vlen(type); i++) {
      const btf_type* variable = btf__type_by_id(types, variables[i].type);
      if (!std::strcmp(btf__name_by_offset(types, variable->name_off), name) && variables[i].size == sizeof(T))
        return *reinterpret_cast<T*>(data + variables[i].offset);
    }
  }
  fail(ENOENT, std::string("find ") + name + " in the BPF object");
}

}  // namespace

void Object::CloseObject::operator()(bpf_object* object) const { bpf_object__close(object); }
void Object::CloseLink::operator()(bpf_link* link) const { bpf_link__destroy(link); }

Object::Object(const Options& options) : options_(options) {
  libbpf_set_print(keep_complaint);
  complaints.clear();
  LIBBPF_OPTS(bpf_object_open_opts, open_options, .object_name = "reinet");
  const KernelOps kernel;
  const auto [image, image_end] = fitting(kernel);
  object_.reset(bpf_object__open_mem(image, static_cast<std::size_t>(image_end - image), &open_options));
  if (!object_) fail(errno, "open the BPF object");
  set_up_rodata();
  set_up_wrappers();
  const auto find = [&](const char* name) { return bpf_object__find_map_by_name(object_.get(), name); };
  for (const char* of_each_flow : {"reinet_slots", "reinet_caps", "reinet_free"})
    bpf_map__set_max_entries(find(of_each_flow), options.max_flows);
  bpf_map__set_max_entries(find("reinet_cgroups"), most_cgroups);
  bpf_map__set_max_entries(find("reinet_records"), options.records_bytes);
  if (options.events_bytes) bpf_map__set_max_entries(find("reinet_events"), options.events_bytes);
  if (options.flows_map_fd >= 0)
    checked(bpf_map__reuse_fd(find("reinet_flows"), options.flows_map_fd), "look into another shim's flows");
  if (const int error = bpf_object__load(object_.get())) fail(error, "load the BPF programs");
  for (const char* of_the_kernel : {"reinet_slots", "reinet_counters"})
    checked(bpf_map_freeze(map_fd(of_the_kernel)), std::string("freeze ") + of_the_kernel);
  caps_ = {map_fd("reinet_caps"), sizeof(reinet_cap) * options.max_flows, Access::write, "caps"};
  control_ = {map_fd("reinet_control"), sizeof(reinet_control), Access::write, "control"};
  fill_free_slots();
  for (const Wrapper& wrapper : wrappers_) prepare(kernel, object_.get(), wrapper.structure, wrapper.name);
}

Object::~Object() = default;

void Object::set_up_rodata() {
  constant<reinet_period_config>(object_.get(), "period_config") = options_.period;
  constant<std::uint32_t>(object_.get(), "default_target_us") = options_.default_target_us;
  constant<bool>(object_.get(), "sweeps_flows_only") = options_.flows_map_fd >= 0;
  const bool records = options_.events_bytes > 0;
  constant<bool>(object_.get(), "record_events") = records;
  bpf_program__set_autoload(find_program("reinet_replay"), records);
}

// Of what is not to be wrapped nothing is loaded: this host's verifier might refuse it.
void Object::set_up_wrappers() {
  for (reinet_wrapped& entry : constant<reinet_wrapped[REINET_ALGORITHMS]>(object_.get(), "wrapped")) {
    const std::string structure = entry.wrapper;
    const auto chosen = std::find_if(options_.wrappers.begin(), options_.wrappers.end(),
                                     [&](const auto& wrapper) { return wrapper.first == entry.plain; });
    const bool wanted = chosen != options_.wrappers.end();
    bpf_map* map = bpf_object__find_map_by_name(object_.get(), structure.c_str());
    bpf_map__set_autocreate(map, wanted);
    bpf_map__set_map_flags(map, link_flag);
    bpf_program* program = nullptr;
    bpf_object__for_each_program(program, object_.get()) if (!member_of(structure, program).empty())
        bpf_program__set_autoload(program, wanted);
    if (wanted) {
      copy_name(entry.wrapper, chosen->second);
      wrappers_.push_back({structure, chosen->second});
    } else {
      entry = {};
    }
  }
  if (wrappers_.empty() || wrappers_.size() != options_.wrappers.size())
    throw Failure(EINVAL, "wrap congestion controls: none is named, or one that is unknown");
}

// Slot 0 on top of the stack.
void Object::fill_free_slots() const {
  const int fd = map_fd("reinet_free");
  for (std::uint32_t slot = options_.max_flows; slot-- > 0;)
    checked(bpf_map_update_elem(fd, nullptr, &slot, BPF_ANY), "fill the list of free slots");
}

void Object::register_wrappers() {
  for (const Wrapper& wrapper : wrappers_) {
    bpf_attr link{};
    link.link_create.prog_fd = static_cast<std::uint32_t>(map_fd(wrapper.structure.c_str()));
    link.link_create.attach_type = link_attach_type;
    registrations_.emplace_back(
        checked(static_cast<int>(syscall(SYS_bpf, BPF_LINK_CREATE, &link, sizeof(link))), "register " + wrapper.name));
  }
  bpf_link_info first{};
  std::uint32_t bytes = sizeof(first);
  checked(bpf_obj_get_info_by_fd(registrations_.front().fd, &first, &bytes), "look at " + wrappers_.front().name);
  __atomic_store_n(&control_->link, first.id, __ATOMIC_RELEASE);
  copy_name(control_->wrapper, wrappers_.front().name);  // last: a name without a link is an earlier version's
}

void Object::attach(const std::vector<std::string>& cgroups) {
  // Nobody asks a shim to leave that has no flows yet, but one of an earlier version that took what loads for left
  // over.
  if (!attached_) __atomic_store_n(&control_->leaving, 0, __ATOMIC_RELAXED);
  std::set<std::uint64_t> chosen;
  std::exception_ptr first;
  for (const std::string& cgroup : cgroups) {
    try {
      chosen.insert(choose_from(cgroup));
    } catch (const Failure&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first && !attached_) {
    detach();  // the others may have had new flows meanwhile
    std::rethrow_exception(first);
  }
  attached_ = true;
  for (auto it = sockops_.begin(); it != sockops_.end();) {
    if (chosen.count(it->first)) {
      ++it;
      continue;
    }
    bpf_map_delete_elem(map_fd("reinet_cgroups"), &it->first);
    it = sockops_.erase(it);
  }
  if (first) std::rethrow_exception(first);
}

// Returns the cgroup's number, which no other cgroup gets as long as the kernel runs.
std::uint64_t Object::choose_from(const std::string& cgroup) {
  struct stat found{};
  checked(stat(cgroup.c_str(), &found), "look at cgroup " + cgroup);
  if (sockops_.count(found.st_ino)) return found.st_ino;  // also where no descriptor is left to open it
  OwnedFd folder{checked(open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), "open cgroup " + cgroup)};
  checked(fstat(folder.fd, &found), "look at cgroup " + cgroup);
  const std::uint64_t id = found.st_ino;
  const std::uint32_t nothing = 0;
  checked(bpf_map_update_elem(map_fd("reinet_cgroups"), &id, &nothing, BPF_ANY),
          "note cgroup " + cgroup + " among " + std::to_string(most_cgroups) + " at most");
  complaints.clear();  // those of an earlier try
  bpf_link* link = bpf_program__attach_cgroup(find_program("reinet_choose"), folder.fd);
  if (!link) {
    const int error = errno;
    bpf_map_delete_elem(map_fd("reinet_cgroups"), &id);
    fail(error, "attach to cgroup " + cgroup);
  }
  sockops_.emplace(id, link);
  return id;
}

std::pair<std::uint32_t, bool> Object::adopt() {
  std::uint32_t put_off = 0;
  const auto work = [&] { put_off += static_cast<std::uint32_t>(iterate("reinet_adopt").size()); };
  work();
  const bool in_time = in_inhabited_namespaces(work, std::chrono::steady_clock::now() + longest_sweep);
  return {put_off, in_time};
}

void Object::detach() {
  sockops_.clear();
  __atomic_store_n(&control_->leaving, 1, __ATOMIC_RELAXED);
  lift_caps();
  registrations_.clear();
}

void Object::lift_caps() const {
  for (std::uint32_t slot = 0; slot < options_.max_flows; slot++)
    __atomic_store_n(&caps_[slot].lease, 0, __ATOMIC_RELAXED);
}

Descriptors Object::descriptors() const {
  Descriptors out;
  out.slots = map_fd("reinet_slots");
  out.caps = map_fd("reinet_caps");
  out.counters = map_fd("reinet_counters");
  out.records = map_fd("reinet_records");
  if (options_.events_bytes) out.events = map_fd("reinet_events");
  out.max_flows = options_.max_flows;
  out.records_bytes = options_.records_bytes;
  out.events_bytes = options_.events_bytes;
  out.default_target_us = options_.default_target_us;
  return out;
}

void Object::sweep() {
  const auto work = [this] { iterate("reinet_sweep"); };
  const Deadline until = std::chrono::steady_clock::now() + longest_sweep;
  work();
  in_reachable_namespaces(work, until);
}

std::map<std::uint64_t, std::uint32_t> Object::where() const {
  std::map<std::uint64_t, std::uint32_t> sockets;
  const auto count = [&] {
    const std::string found = iterate("reinet_where");
    for (std::size_t at = 0; at + sizeof(std::uint32_t) <= found.size(); at += sizeof(std::uint32_t)) {
      std::uint32_t inode = 0;
      std::memcpy(&inode, &found[at], sizeof(inode));
      sockets[inode]++;
    }
  };
  count();
  in_reachable_namespaces(count, std::chrono::steady_clock::now() + longest_sweep);
  return sockets;
}

void Object::replay(reinet_replay& step) const {
  LIBBPF_OPTS(bpf_test_run_opts, run, .ctx_in = &step, .ctx_size_in = sizeof(step));
  checked(bpf_prog_test_run_opts(bpf_program__fd(find_program("reinet_replay")), &run), "run the replay program");
}

int Object::map_fd(const char* name) const {
  return checked(bpf_object__find_map_fd_by_name(object_.get(), name), std::string("find BPF map ") + name);
}

bpf_program* Object::find_program(const char* name) const {
  return bpf_object__find_program_by_name(object_.get(), name);
}

std::string Object::iterate(const char* program) const {
  const std::unique_ptr<bpf_link, CloseLink> link(bpf_program__attach_iter(find_program(program), nullptr));
  if (!link) fail(errno, "attach the socket iterator");
  const OwnedFd iteration{checked(bpf_iter_create(bpf_link__fd(link.get())), "start the socket iterator")};
  std::string written;
  char block[4096];
  ssize_t got;
  while ((got = read(iteration.fd, block, sizeof(block))) > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN)))
    if (got > 0) written.append(block, static_cast<std::size_t>(got));
  checked(static_cast<int>(got), "iterate over the sockets");
  return written;
}

}  // namespace reinet
