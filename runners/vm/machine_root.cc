#include "runners/vm/machine_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "runners/container/device_tree.h"
#include "runners/container/start_request.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kQuiet = MountFlags::kNoSuid | MountFlags::kNoDev | MountFlags::kNoExec;

void make_directory_at(int root, const std::string& path) {
  if (::mkdirat(root, path.c_str(), 0755) != 0 && errno != EEXIST) throw system_error("make " + quote(path));
}

// Mount points, and the host's links from / into /usr.
UniqueFd make_tree(const std::vector<MachineFile>& files) {
  FsContext context("tmpfs");
  context.set("mode", "0755");
  context.set("size", "1m");
  context.create();
  UniqueFd root = context.mount(MountFlags::kNoSuid | MountFlags::kNoDev);
  for (const char* name : {"usr", "etc", "dev", "proc", "sys", "tmp"}) make_directory_at(root.get(), name);
  make_directory_at(root.get(), kMachineInside + 1);
  for (const char* name : {"bin", "sbin", "lib", "lib64"}) {
    std::error_code none;
    const fs::path link = fs::read_symlink(fs::path("/") / name, none);
    if (!none && ::symlinkat(link.c_str(), root.get(), name) != 0) throw system_error("make a link in it");
    if (none && fs::is_directory(fs::path("/") / name)) make_directory_at(root.get(), name);
  }
  for (const MachineFile& file : files) {
    const std::string target = file.target.substr(1);
    if (const auto slash = target.find('/'); slash != std::string::npos)
      make_directory_at(root.get(), target.substr(0, slash));
    const UniqueFd made(::openat(root.get(), target.c_str(), O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0444));
    if (!made) throw system_error("make " + quote(file.target));
  }
  return root;
}

}  // namespace

MachineRoot make_machine_root(GuestPlace& place, const fs::path& directory, int user_namespace, Accelerator accelerator,
                              const std::vector<MachineFile>& files) {
  std::vector<MachineFile> all = files;
  // Where libraries are that no usual directory has.
  if (fs::exists("/etc/ld.so.cache")) all.push_back({"/etc/ld.so.cache", "/etc/ld.so.cache"});
  MachineRoot made;
  made.root = make_tree(all);
  // What holds it is another mount namespace soon, where its parts are attached; then nothing writes to it.
  set_mount_attributes(made.root.get(), MountFlags::kReadOnly);
  const auto add = [&](UniqueFd mount, wire::MountKind kind, std::string target) {
    made.parts.push_back({std::move(mount), kind, std::move(target)});
  };
  const auto seen_inside = [&](const fs::path& path, std::uint64_t attributes) {
    UniqueFd mount = clone_mount(path);
    id_map_mount(mount.get(), user_namespace);
    set_mount_attributes(mount.get(), attributes);
    return mount;
  };
  const auto host_directory = [&](const char* path) {
    UniqueFd mount = clone_mount(path);
    set_mount_attributes(mount.get(), MountFlags::kReadOnly | MountFlags::kNoSuid | MountFlags::kNoDev);
    add(std::move(mount), wire::MountKind::Place, path);
  };
  host_directory("/usr");
  for (const char* path : {"/lib", "/lib64"})
    if (!fs::is_symlink(path) && fs::is_directory(path)) host_directory(path);
  fs::path dev = place.path() / "dev";
  if (accelerator == Accelerator::Kvm) {
    dev = directory / "dev";
    make_device_tree(dev, {{"/dev/kvm", "/dev/kvm"}});
  }
  add(seen_inside(dev, MountFlags::kReadOnly | MountFlags::kNoSuid | MountFlags::kNoExec), wire::MountKind::Place,
      "/dev");
  const fs::path own = directory / kMachineDirectory;
  if (::mkdir(own.c_str(), 0700) != 0 && errno != EEXIST) throw system_error("make " + quote(own.native()));
  add(seen_inside(own, kQuiet), wire::MountKind::Place, kMachineInside);
  for (const MachineFile& file : all) {
    const std::uint64_t attributes = kQuiet | (file.writable ? 0 : MountFlags::kReadOnly);
    add(attempt("cannot show " + quote(file.source.native()) + " to the VMM",
                [&] { return seen_inside(file.source, attributes); }),
        wire::MountKind::Optional, file.target);
  }
  return made;
}

void send_machine_root(KeeperLaunch& keeper, const MachineRoot& root, int network) {
  DescriptorList descriptors;
  FrameText text;
  text.u32(descriptors.add(root.root.get())).u32(descriptors.add(network));
  text.u32(static_cast<std::uint32_t>(root.parts.size()));
  for (const MachineRoot::Part& part : root.parts) {
    text.u32(descriptors.add(part.mount.get())).u32(static_cast<std::uint32_t>(part.kind));
    text.str(part.target).str("");
  }
  send_request(keeper, wire::Type::Root, text.text(), descriptors.all());
}

}  // namespace dsec::runners
