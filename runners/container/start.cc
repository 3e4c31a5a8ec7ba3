#include "runners/container/start.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <optional>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "core/engine/lease.h"
#include "runners/container/channel.h"
#include "runners/container/cpu_class.h"
#include "runners/container/device_tree.h"
#include "runners/container/launch.h"
#include "runners/container/overlay_identity.h"
#include "runners/egress/egress.h"
#include "runners/isolation/capabilities.h"
#include "runners/isolation/id_map.h"
#include "runners/isolation/resource_limits.h"
#include "runners/isolation/sandbox_paths.h"
#include "runners/isolation/seccomp_filter.h"
#include "runners/isolation/writable_layer.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using engine::RunnerRequest;
namespace {

constexpr std::uint32_t kNone = 0xffffffff;
// One message carries 253 descriptors, and most are for what a user may bind.
constexpr std::size_t kSpentMounts = 32;

// Descriptors of the Start frame, named in it by their place.
class DescriptorList {
 public:
  std::uint32_t add(int fd) {
    fds_.push_back(fd);
    return static_cast<std::uint32_t>(fds_.size() - 1);
  }
  std::uint32_t keep(UniqueFd fd) {
    owned_.push_back(std::move(fd));
    return add(owned_.back().get());
  }
  std::span<const int> all() const { return fds_; }

 private:
  std::vector<int> fds_;
  std::vector<UniqueFd> owned_;
};

struct PreparedMount {
  UniqueFd mount;
  wire::MountKind kind;
  std::string target;
};

constexpr std::uint64_t kQuiet = MountFlags::kNoSuid | MountFlags::kNoExec;

// With everything mounted below it. Returns false when a filesystem among them cannot be id-mapped.
bool set_tree_attributes(int mount, std::uint64_t set, int user_namespace) {
  mount_attr attributes = {};
  attributes.attr_set = set | (user_namespace >= 0 ? MOUNT_ATTR_IDMAP : 0);
  attributes.userns_fd = user_namespace >= 0 ? static_cast<std::uint64_t>(user_namespace) : 0;
  if (::syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof attributes) == 0)
    return true;
  if (user_namespace >= 0 && (errno == EINVAL || errno == EPERM)) return false;
  throw system_error("set the attributes of a mount");
}

class Starter {
 public:
  Starter(const StartParts& parts, RunnerRequest& request)
      : parts_(parts), request_(request), spec_(request.spec), directory_(request.directory) {}

  /// The pid of its keeper.
  int run() {
    // In the order in which the keeper needs it: it starts, then makes namespaces, while we go on here.
    const std::unique_ptr<KeeperLaunch> launched = parts_.keepers.take(parts_.cgroups, parts_.program, directory_);
    KeeperLaunch& keeper = *launched;
    map_ = spec_.userns == UserNamespace::Auto ? id_map_for(request_.id, host_id_range()) : IdMap{0, 0xffffffff};
    const bool own_network = spec_.network != NetworkMode::Host;
    using Network = NewUserNamespace::Network;
    if (spec_.userns == UserNamespace::Auto)
      user_namespace_.emplace(map_, own_network ? Network::With : Network::Without);
    const SandboxCgroups cgroups = attempt("cannot make its control groups", [&] {
      return SandboxCgroups::create(parts_.cgroups, request_.id, spec_.limits);
    });
    send_start(keeper, cgroups);
    {
      const UniqueFd root = attempt("cannot make its root filesystem", [&] { return make_root(); });
      attempt("cannot prepare its mounts", [&] { prepare_mounts(); });
      UniqueFd network;
      if (own_network) network = user_namespace_ ? user_namespace_->take_network() : make_network_namespace();
      send_root(keeper, root, network);
    }
    // While PID 1 is on its way.
    mounts_.clear();
    user_namespace_.reset();
    parts_.keepers.refill(parts_.cgroups, parts_.program, directory_);
    keeper.await_execution();
    const std::optional<Frame> answer = keeper.channel().receive();
    if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
    wire::Reader reader = answer->reader();
    const std::uint32_t pid = reader.u32();
    if (answer->type != wire::Type::Started || !reader.ok()) throw failure("the sandbox's keeper broke the protocol");
    if (spec_.limits.cpu_class == CpuClass::Batch) cgroups.begin_idle();
    keeper.finish();
    return static_cast<int>(pid);
  }

 private:
  int user_namespace() const { return user_namespace_ ? user_namespace_->fd() : -1; }

  UniqueFd shared(const char* name, std::uint64_t attributes) {
    return seen_inside(parts_.place.path() / name, attributes);
  }

  UniqueFd seen_inside(const fs::path& path, std::uint64_t attributes) {
    UniqueFd mount = clone_mount(path);
    if (user_namespace_) id_map_mount(mount.get(), user_namespace());
    if (attributes) set_mount_attributes(mount.get(), attributes);
    return mount;
  }

  UniqueFd make_root() {
    UniqueFd base = shared("base", 0);
    std::vector<int> lowers{base.get()};
    struct stat top = {};
    for (const UniqueFd& lower : request_.stack.lowers) {
      if (::fstat(lower.get(), &top) != 0) throw system_error("stat a layer");
      if (user_namespace_) idmap_mount(lower.get(), user_namespace(), "a layer");
      lowers.push_back(lower.get());
    }
    OverlaySpec overlay;
    overlay.lowers = lowers;
    overlay.source = "dsec";
    overlay.skip_syncs = true;
    overlay.attributes = MountFlags::kNoDev;
    UniqueFd writable;
    if (!spec_.read_only) {
      writable = make_writable(top);
      overlay.writable = writable.get();
    }
    UniqueFd root = [&] {
      const OverlayIdentity identity(map_.first);
      return make_overlay(overlay);
    }();
    put_away(std::move(base));
    if (writable) put_away(std::move(writable));
    for (UniqueFd& lower : request_.stack.lowers) put_away(std::move(lower));
    return root;
  }

  // The merged root shows the attributes of the writable one, so they are those of the topmost layer.
  UniqueFd make_writable(const struct stat& top) {
    UniqueFd mount = open_writable_layer(directory_, spec_.limits.disk, LayerUse::Run);
    if (::fchownat(mount.get(), "upper", top.st_uid, top.st_gid, AT_SYMLINK_NOFOLLOW) != 0 ||
        ::fchmodat(mount.get(), "upper", top.st_mode & 07777, 0) != 0)
      throw system_error("set the owner and mode of the writable layer");
    const timespec times[] = {{0, UTIME_OMIT}, top.st_mtim};
    if (::utimensat(mount.get(), "upper", times, AT_SYMLINK_NOFOLLOW) != 0)
      throw system_error("set the time of the writable layer");
    if (user_namespace_) idmap_mount(mount.get(), user_namespace(), "the writable layer");
    return mount;
  }

  void add_mount(UniqueFd mount, wire::MountKind kind, std::string target) {
    mounts_.push_back({std::move(mount), kind, std::move(target)});
  }

  // The root has copies of its own. Ending one here would take as long as all of them together in the sandbox.
  void put_away(UniqueFd mount) {
    if (mounts_.size() < kSpentMounts) add_mount(std::move(mount), wire::MountKind::Spent, "");
  }

  void add_host_tree(const char* source, const char* target) {
    UniqueFd mount = try_clone_mount(AT_FDCWD, source);
    if (!mount && errno == ENOENT) return;  // this kernel does not have it
    if (!mount) throw system_error("copy the mount of " + quote(source));
    set_mount_attributes(mount.get(), MountFlags::kReadOnly | MountFlags::kNoDev | kQuiet);
    add_mount(std::move(mount), wire::MountKind::Optional, target);
  }

  void add_file(const char* name, const std::string& content, wire::MountKind kind = wire::MountKind::File,
                std::string inside = "") {
    if (inside.empty()) inside = "/etc/" + std::string(name);
    const fs::path path = directory_ / name;
    {
      const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
      write_all(file.get(), content);
      if (::fchmod(file.get(), 0644) != 0) throw system_error("set the mode of " + quote(path.native()));
    }
    UniqueFd mount = clone_mount(path);
    if (user_namespace_) id_map_mount(mount.get(), user_namespace());
    set_mount_attributes(mount.get(), MountFlags::kNoDev | kQuiet);
    add_mount(std::move(mount), kind, std::move(inside));
  }

  // One of its own where it is given devices.
  UniqueFd dev() {
    if (spec_.devices.empty()) return shared("dev", MountFlags::kReadOnly | kQuiet);
    make_device_tree(directory_ / "dev", spec_.devices);
    return seen_inside(directory_ / "dev", MountFlags::kReadOnly | kQuiet);
  }

  void prepare_mounts() {
    add_mount(dev(), wire::MountKind::Place, "/dev");
    if (spec_.network == NetworkMode::Host) {
      add_host_tree("/sys", "/sys");
    } else {
      add_mount(shared("sys", MountFlags::kReadOnly | MountFlags::kNoDev | kQuiet), wire::MountKind::Place, "/sys");
      add_host_tree("/sys/devices/system", "/sys/devices/system");
      add_host_tree("/sys/kernel/mm", "/sys/kernel/mm");
    }
    const std::string name = hostname();
    add_file("hostname", name + "\n");
    add_file("hosts", "127.0.0.1\tlocalhost " + name + "\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    if (!spec_.machine_id.empty()) add_file("machine-id", spec_.machine_id + "\n", wire::MountKind::Optional);
    if (spec_.network == NetworkMode::Host) {
      add_file("resolv.conf", read_file("/etc/resolv.conf", 1 << 20));
    } else if (spec_.network == NetworkMode::Policy) {
      add_file("resolv.conf", egress_resolv_conf());
      // The gateway says what stands in it.
      if (spec_.network_plan.intercept_tls) add_file(kCaFile, "", wire::MountKind::File, kCaInside);
    } else {
      // Empty, and the same file for all.
      add_mount(shared("base/etc/resolv.conf", MountFlags::kReadOnly | MountFlags::kNoDev | kQuiet),
                wire::MountKind::File, "/etc/resolv.conf");
    }
    const auto of_caller = static_cast<std::ptrdiff_t>(mounts_.size());
    for (const BindMount& bind : spec_.binds) attempt("cannot bind " + quote(bind.source), [&] { add_bind(bind); });
    for (const TmpfsMount& mount : spec_.tmpfs)
      attempt("cannot make a filesystem in memory for " + quote(mount.target), [&] { add_tmpfs(mount); });
    // What lies in another is mounted after it.
    if (!spec_.tmpfs.empty())
      std::stable_sort(
          mounts_.begin() + of_caller, mounts_.end(),
          [](const PreparedMount& left, const PreparedMount& right) { return left.target < right.target; });
  }

  // Not id-mapped, which kernels before 6.3 cannot: its root belongs to root inside from the beginning.
  void add_tmpfs(const TmpfsMount& wish) {
    FsContext context("tmpfs");
    context.set("mode", "1777");
    if (wish.size > 0) context.set("size", std::to_string(wish.size));
    context.set("uid", std::to_string(map_.first));
    context.set("gid", std::to_string(map_.first));
    context.create();
    add_mount(context.mount(MountFlags::kNoSuid | MountFlags::kNoDev), wire::MountKind::Directory, wish.target);
  }

  void add_bind(const BindMount& bind) {
    struct stat info = {};
    UniqueFd mount = clone_mount(bind.source, Submounts::With);
    if (::fstat(mount.get(), &info) != 0) throw system_error("stat it");
    const std::uint64_t attributes =
        MountFlags::kNoSuid | MountFlags::kNoDev | (bind.read_only ? MountFlags::kReadOnly : 0);
    // Where a filesystem below cannot be id-mapped its files show the overflow id, and their modes decide.
    if (!set_tree_attributes(mount.get(), attributes, user_namespace()))
      set_tree_attributes(mount.get(), attributes, -1);
    add_mount(std::move(mount), S_ISDIR(info.st_mode) ? wire::MountKind::Directory : wire::MountKind::File,
              bind.target);
  }

  std::string hostname() const { return spec_.hostname.empty() ? request_.id : spec_.hostname; }

  // Fixed for all sandboxes, so that a run here and one elsewhere see the same; the image and the caller may differ.
  std::vector<std::string> environment() const {
    std::vector<std::string> env{"HOSTNAME=" + hostname(), "TZ=UTC", "LANG=C.UTF-8"};
    if (spec_.network == NetworkMode::Policy) {
      const std::vector<std::string> proxy = egress_environment(hostname(), spec_.network_plan);
      env.insert(env.end(), proxy.begin(), proxy.end());
    }
    env.insert(env.end(), spec_.config.env.begin(), spec_.config.env.end());
    return env;
  }

  void send_start(KeeperLaunch& keeper, const SandboxCgroups& cgroups) {
    DescriptorList descriptors;
    FrameText text;
    const auto milliseconds = [](const auto& duration) {
      return static_cast<std::uint64_t>(std::max<std::int64_t>(duration ? duration->count() : 0, 0));
    };
    std::uint32_t flags = 0;
    if (spec_.network == NetworkMode::Host) flags |= wire::kStartHostNetwork;
    if (user_namespace_) flags |= wire::kStartUserNamespace;
    if (spec_.limits.class_by == kIdlePolicy) flags |= wire::kStartIdlePolicy;
    if (spec_.limits.cpu_class == CpuClass::Batch) flags |= wire::kStartIdle;
    if (has_core_scheduling(spec_.limits.class_by)) flags |= wire::kStartCoreScheduling;
    text.u32(wire::kVersion).u32(flags).str(directory_.native()).str(request_.id).str(hostname());
    text.str(engine::ProcessIdentity::self().boot_id);
    text.u64(milliseconds(spec_.lifetime)).u64(milliseconds(spec_.idle)).u64(milliseconds(spec_.idle_pause));
    text.u64(spec_.limits.output);
    text.u32(static_cast<std::uint32_t>(signal_number(spec_.config.stop_signal))).u64(kSandboxCapabilities);
    text.str({reinterpret_cast<const char*>(kSeccompProgram), sizeof kSeccompProgram});
    text.strs(environment()).str(spec_.config.workdir).str(spec_.config.user);
    text.u32(map_.first).u32(map_.count);

    text.u32(descriptors.keep(open_file(directory_, O_RDONLY | O_DIRECTORY)));
    text.u32(descriptors.add(parts_.place.keeper_namespace()));
    text.u32(user_namespace_ ? descriptors.add(user_namespace()) : kNone);
    text.u32(descriptors.add(parts_.program));
    add_cgroups(cgroups, descriptors, text);
    text.strs(masked_paths()).strs({std::begin(kReadOnlyPaths), std::end(kReadOnlyPaths)});
    text.u32(std::size(kResourceLimits));
    for (const ResourceLimit& limit : kResourceLimits)
      text.u32(static_cast<std::uint32_t>(limit.resource)).u64(limit.soft).u64(limit.hard);
    text.str(kOomScoreAdj);
    std::vector<std::string> remover, remover_env;
    if (spec_.remove_at_end && !parts_.dsec.empty()) {
      remover = {parts_.dsec.native(), "rm", request_.id};
      remover_env = {"DSEC_HOME=" + directory_.parent_path().parent_path().native(),
                     "PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
    }
    text.strs(remover).strs(remover_env);
    // Not named: it has them as long as it lives.
    for (const FileLock& hold : request_.holds) descriptors.add(hold.fd());
    send(keeper, wire::Type::Start, text.text(), descriptors.all());
  }

  void send_root(KeeperLaunch& keeper, const UniqueFd& root, const UniqueFd& network) {
    DescriptorList descriptors;
    FrameText text;
    text.u32(descriptors.add(root.get())).u32(network ? descriptors.add(network.get()) : kNone);
    text.u32(static_cast<std::uint32_t>(mounts_.size()));
    for (const PreparedMount& mount : mounts_)
      text.u32(descriptors.add(mount.mount.get())).u32(static_cast<std::uint32_t>(mount.kind)).str(mount.target);
    send(keeper, wire::Type::Root, text.text(), descriptors.all());
  }

  // A keeper that could not begin, or has given up already, says why.
  static void send(KeeperLaunch& keeper, wire::Type type, std::string_view text, std::span<const int> descriptors) {
    try {
      keeper.channel().send(type, text, descriptors);
    } catch (const Error&) {
      const std::exception_ptr failed = std::current_exception();
      keeper.await_execution();
      std::optional<Frame> answer;
      try {
        answer = keeper.channel().receive();
      } catch (const Error&) {
        // It could not say anything.
      }
      if (answer && answer->type == wire::Type::Failed) throw keeper_error(*answer);
      std::rethrow_exception(failed);
    }
  }

  void add_cgroups(const SandboxCgroups& cgroups, DescriptorList& descriptors, FrameText& text) {
    const SandboxCgroups::Group& lifecycle = cgroups.groups().front();
    text.u32(descriptors.add(cgroups.v2())).u32(descriptors.add(lifecycle.parent.get()));
    std::uint32_t oom = kNone;
    if (const SandboxCgroups::Group* memory = cgroups.memory())
      if (UniqueFd file(::openat(memory->directory.get(), memory->v2 ? "memory.events" : "memory.oom_control",
                                 O_RDONLY | O_CLOEXEC));
          file)
        oom = descriptors.keep(std::move(file));
    text.u32(oom);
    text.u32(request_.trajectory.empty() ? kNone
                                         : descriptors.keep(open_file(request_.trajectory, O_RDONLY | O_DIRECTORY)));
    text.u32(request_.trajectory_checksum).str(cgroups.name());
    std::vector<UniqueFd> joins = cgroups.join_descriptors();
    text.u32(static_cast<std::uint32_t>(joins.size()));
    // join_descriptors() gives one for each v1 group, in their order.
    std::size_t next = 0;
    for (const SandboxCgroups::Group& group : cgroups.groups()) {
      if (group.v2 || next == joins.size()) continue;
      text.u32(descriptors.add(group.parent.get())).u32(descriptors.keep(std::move(joins[next++]))).str(cgroups.name());
    }
  }

  const StartParts& parts_;
  RunnerRequest& request_;
  const SandboxSpec& spec_;
  const fs::path& directory_;
  IdMap map_;
  std::optional<NewUserNamespace> user_namespace_;
  std::vector<PreparedMount> mounts_;
};

}  // namespace

int start_sandbox(const StartParts& parts, RunnerRequest& request) { return Starter(parts, request).run(); }

int signal_number(const std::string& name) {
  if (name.empty()) return SIGTERM;
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size() && number > 0 && number <= SIGRTMAX) return number;
  std::string bare = name;
  for (char& c : bare) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  if (bare.starts_with("SIG")) bare.erase(0, 3);
  for (int candidate = 1; candidate < SIGRTMIN; ++candidate) {
    const char* const known = ::sigabbrev_np(candidate);
    if (known && bare == known) return candidate;
  }
  if (bare == "RTMIN") return SIGRTMIN;
  if (bare.starts_with("RTMIN+")) {
    const auto [to, bad] = std::from_chars(bare.data() + 6, bare.data() + bare.size(), number);
    if (bad == std::errc() && to == bare.data() + bare.size() && number >= 0 && SIGRTMIN + number <= SIGRTMAX)
      return SIGRTMIN + number;
  }
  throw usage_error("unknown signal " + quote(name)).hint("use a name like SIGTERM, or a number");
}

}  // namespace dsec::runners
