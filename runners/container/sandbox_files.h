#pragma once

#include <filesystem>
#include <optional>

#include "core/base/files.h"
#include "core/base/unique_fd.h"
#include "core/engine/runner.h"
#include "runners/container/files.h"

namespace dsec::runners {

/// The file tree of a sandbox, whether it runs or has ended, for as long as the object lives.
class SandboxTree {
 public:
  /// Throws Error when the sandbox is neither, for instance still being made.
  SandboxTree(const std::filesystem::path& directory, const engine::OpenLayers& layers);
  SandboxFiles files() const { return {root_.get(), ids_}; }

 private:
  std::optional<FileLock> alone_;  ///< of one that has ended: its tree is composed once at a time
  UniqueFd root_;
  IdMap ids_ = kUnmappedIds;
};

/// The upper directory of the writable layer, read-only, with owners as seen inside. Throws Error.
UniqueFd open_upper(const std::filesystem::path& directory);

}  // namespace dsec::runners
