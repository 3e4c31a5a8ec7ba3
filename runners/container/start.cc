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
#include <optional>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "runners/container/channel.h"
#include "runners/container/device_tree.h"
#include "runners/container/launch.h"
#include "runners/container/overlay_identity.h"
#include "runners/container/start_request.h"
#include "runners/egress/egress.h"
#include "runners/isolation/capabilities.h"
#include "runners/isolation/id_map.h"
#include "runners/isolation/sandbox_paths.h"
#include "runners/isolation/writable_layer.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using engine::RunnerRequest;
namespace {

// One message carries 253 descriptors, and most are for what a user may bind.
constexpr std::size_t kSpentMounts = 32;

struct PreparedMount {
  UniqueFd mount;  ///< none: a file that has this content
  wire::MountKind kind;
  std::string target, content;
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
    const bool own_network = spec_.network != NetworkMode::Host;
    if (spec_.userns == UserNamespace::Auto) {
      user_namespace_ = own_network ? parts_.namespaces.take()
                                    : std::make_unique<NewUserNamespace>(id_map_for(request_.id, host_id_range()));
      map_ = user_namespace_->map();
    }
    const SandboxCgroups cgroups = attempt("cannot make its control groups", [&] {
      return SandboxCgroups::create(parts_.cgroups, request_.id, spec_.limits);
    });
    send_start(keeper, start_request(cgroups));
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
    if (own_network && spec_.userns == UserNamespace::Auto) parts_.namespaces.refill();
    const int pid = await_start(keeper);
    if (spec_.limits.cpu_class == CpuClass::Batch) cgroups.begin_idle();
    keeper.finish();
    // From now on the processors are the sandbox's, which leaves some room; but not while its command is on its way.
    if (!spec_.made_for_command) parts_.namespaces.begin();
    return pid;
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
    mounts_.push_back({std::move(mount), kind, std::move(target), {}});
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

  void add_file(std::string target, std::string content, wire::MountKind kind = wire::MountKind::File) {
    mounts_.push_back({UniqueFd(), kind, std::move(target), std::move(content)});
  }

  // The gateway says what stands in it.
  void add_authority() {
    const fs::path path = directory_ / kCaFile;
    {
      const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
      if (::fchmod(file.get(), 0644) != 0) throw system_error("set the mode of " + quote(path.native()));
    }
    add_mount(seen_inside(path, MountFlags::kNoDev | kQuiet), wire::MountKind::File, kCaInside);
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
    add_file("/etc/hostname", name + "\n");
    add_file("/etc/hosts", "127.0.0.1\tlocalhost " + name + "\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    if (!spec_.machine_id.empty()) add_file("/etc/machine-id", spec_.machine_id + "\n", wire::MountKind::Optional);
    if (spec_.network == NetworkMode::Host) {
      add_file("/etc/resolv.conf", read_file("/etc/resolv.conf", 1 << 20));
    } else if (spec_.network == NetworkMode::Policy) {
      add_file("/etc/resolv.conf", egress_resolv_conf());
      if (spec_.network_plan.intercept_tls) add_authority();
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

  std::vector<std::string> environment() const {
    std::vector<std::string> env{"HOSTNAME=" + hostname()};
    if (spec_.network == NetworkMode::Policy) {
      const std::vector<std::string> proxy = egress_environment(hostname(), spec_.network_plan);
      env.insert(env.end(), proxy.begin(), proxy.end());
    }
    env.insert(env.end(), spec_.config.env.begin(), spec_.config.env.end());
    return env;
  }

  StartRequest start_request(const SandboxCgroups& cgroups) {
    std::uint32_t flags = 0;
    if (spec_.network == NetworkMode::Host) flags |= wire::kStartHostNetwork;
    if (user_namespace_) flags |= wire::kStartUserNamespace;
    if (!spec_.made_for_command) flags |= wire::kStartLater;
    return {.sandbox = request_,
            .cgroups = cgroups,
            .flags = flags,
            .hostname = hostname(),
            .capabilities = kSandboxCapabilities,
            .environment = environment(),
            .workdir = spec_.config.workdir,
            .user = spec_.config.user,
            .map = map_,
            .keeper_namespace = parts_.place.keeper_namespace(),
            .user_namespace = user_namespace(),
            .program = parts_.program,
            .counts_kills = true,
            .masked_paths = masked_paths(),
            .read_only_paths = {std::begin(kReadOnlyPaths), std::end(kReadOnlyPaths)},
            .dsec = parts_.dsec,
            .machine = {}};
  }

  void send_root(KeeperLaunch& keeper, const UniqueFd& root, const UniqueFd& network) {
    DescriptorList descriptors;
    FrameText text;
    text.u32(descriptors.add(root.get())).u32(network ? descriptors.add(network.get()) : kNoDescriptor);
    text.u32(static_cast<std::uint32_t>(mounts_.size()));
    for (const PreparedMount& mount : mounts_) {
      text.u32(mount.mount ? descriptors.add(mount.mount.get()) : kNoDescriptor);
      text.u32(static_cast<std::uint32_t>(mount.kind)).str(mount.target).str(mount.content);
    }
    send_request(keeper, wire::Type::Root, text.text(), descriptors.all());
  }

  const StartParts& parts_;
  RunnerRequest& request_;
  const SandboxSpec& spec_;
  const fs::path& directory_;
  IdMap map_{0, 0xffffffff};
  std::unique_ptr<NewUserNamespace> user_namespace_;
  std::vector<PreparedMount> mounts_;
};

}  // namespace

int start_sandbox(const StartParts& parts, RunnerRequest& request) { return Starter(parts, request).run(); }

}  // namespace dsec::runners
