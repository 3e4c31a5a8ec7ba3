#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/engine/layer_store.h"
#include "layers/build/build_secret.h"
#include "layers/build/cache_mounts.h"
#include "layers/build/step_mounts.h"
#include "layers/dockerfile/copy_files.h"
#include "layers/dockerfile/run_mount.h"

namespace dsec::layers {

/// The mounts of one RUN, made for its sandbox and gone with this object; what is in caches stays.
class RunMounts {
 public:
  struct Setting {
    std::filesystem::path cache;  ///< of the home
    const std::map<std::string, BuildSecret>& secrets;
    dockerfile::CopyOrigin& root;  ///< what the command runs on, for links on the way to a target
  };
  explicit RunMounts(Setting setting) : set_(std::move(setting)) {}
  RunMounts(const RunMounts&) = delete;

  /// Locked caches are waited for; in one order for all, so that no two wait for each other.
  void add_caches(std::span<const dockerfile::RunMount> mounts);
  /// A bind, of a selection that is one file or folder.
  void add_bind(const dockerfile::RunMount& mount, dockerfile::Selection& selection);
  void add_tmpfs(const dockerfile::RunMount& mount);
  /// Throws Error (Usage) for one that is required and not given.
  void add_secret(const dockerfile::RunMount& mount);

  /// A file that can be executed; returns where it is.
  std::string add_script(const std::string& content);

  /// What the step needs, complete when all were added.
  const StepMounts& mounts();

 private:
  std::string target_of(const dockerfile::RunMount& mount);
  std::filesystem::path secret_folder();

  Setting set_;
  StepMounts mounts_;
  std::vector<CacheMounts::Held> held_;
  std::vector<TempDirectory> folders_;
  std::optional<TempDirectory> secrets_;
};

/// Removes the secrets of builds that were killed while they made a sandbox. `memory` is where files in memory are.
void remove_stale_secrets(const std::filesystem::path& memory = "/dev/shm");

/// The one file or folder of a bind, as a COPY would have it that keeps owners.
dockerfile::CopyFiles bind_as_copy(const dockerfile::RunMount& mount);

}  // namespace dsec::layers
