#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "core/base/progress.h"
#include "core/model/layer_manifest.h"
#include "registry/directory/registry_root.h"
#include "registry/directory/usrbio_reader.h"

namespace dsec::registry {

/// Reads the blobs of a registry on 3FS: large pieces through rings of the 3FS client as far as it has them, all else
/// through FUSE. Blobs that are read in pieces stay open, since the kernel drops what it has cached of a file on 3FS
/// each time somebody opens it. Any number of threads.
class ThreeFsBlobs {
 public:
  /// Both outlive it; `progress` is told why rings are not used. `patience` is how long these may give nothing.
  ThreeFsBlobs(const RegistryRoot& root, std::chrono::milliseconds patience, Progress& progress);

  /// Registry::copy_blob and Registry::read_range.
  Digest copy(const Blob& blob, int to, const std::function<void(std::uint64_t)>& advance);
  void read(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes);
  /// Registry::distrust.
  void distrust();

 private:
  std::shared_ptr<const UniqueFd> open(const Blob& blob);
  UniqueFd open_new(const Blob& blob);
  Digest copy(const Blob& blob, int source, int to, const std::function<void(std::uint64_t)>& advance);

  const RegistryRoot& root_;
  UsrbioReader rings_;
  std::mutex mutex_;
  std::list<std::pair<Digest, std::shared_ptr<const UniqueFd>>> open_;  ///< the last used first
};

}  // namespace dsec::registry
