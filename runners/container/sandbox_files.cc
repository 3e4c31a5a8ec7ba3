#include "runners/container/sandbox_files.h"

#include <fcntl.h>

#include <cerrno>
#include <sstream>

#include "core/base/error.h"
#include "core/base/mount.h"
#include "runners/container/channel.h"
#include "runners/container/composed_tree.h"
#include "runners/container/state_file.h"
#include "runners/isolation/writable_layer.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

/// What the ids of a running sandbox stand for, as the kernel has it.
IdMap id_map_of(const std::string& process) {
  std::istringstream text(read_file(process + "/uid_map", 4096));
  std::uint32_t inside = 0;
  IdMap map;
  if (!(text >> inside >> map.first >> map.count) || inside != 0)
    throw failure("its user namespace has an unknown map");
  return map;
}

// One that has not had a command yet may lack what only commands use.
void complete(const fs::path& directory) {
  std::optional<Channel> keeper = Channel::connect(directory);
  if (!keeper) return;
  try {
    request(*keeper, wire::Type::Resume, {});
  } catch (const KeeperGone&) {
    // It has just ended.
  }
}

}  // namespace

SandboxTree::SandboxTree(const fs::path& directory, const engine::OpenLayers& layers) {
  complete(directory);
  if (living_keeper(directory) != 0) {
    const std::optional<SandboxRecord> record = read_record(directory);
    if (!record || record->init_pid == 0) throw failure("the sandbox does not run yet");
    const std::string process = "/proc/" + std::to_string(record->init_pid);
    ids_ = id_map_of(process);
    root_ = open_file(process + "/root", O_PATH | O_DIRECTORY);
    // The keeper is the parent of PID 1: as long as it has not noticed the end, the number means no other process.
    const std::optional<SandboxRecord> still = read_record(directory);
    if (living_keeper(directory) != 0 && still && still->init_pid == record->init_pid) return;
  }
  ids_ = kUnmappedIds;
  alone_.emplace(directory / "files.lock", FileLock::Mode::Exclusive);
  root_ = compose_tree(directory, layers());
}

UniqueFd open_upper(const fs::path& directory) {
  if (fs::exists(directory / "upper")) {
    UniqueFd mount = clone_mount(directory / "upper");
    set_mount_attributes(mount.get(), MountFlags::kReadOnly | MountFlags::kNoSuid | MountFlags::kNoDev);
    return mount;
  }
  const UniqueFd layer = open_writable_layer(directory, std::nullopt, LayerUse::Look);
  UniqueFd upper(::openat(layer.get(), "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!upper) throw system_error("open the writable layer");
  return upper;
}

}  // namespace dsec::runners
