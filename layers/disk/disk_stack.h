#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "layers/disk/block_target.h"
#include "layers/disk/disk_files.h"
#include "layers/overlaybd/stack.h"

namespace dsec::layers {

/// Layers of a disk that shall become one. It is made beside the disk's use, by any thread.
struct Compaction {
  std::filesystem::path disk;
  std::size_t first = 0;              ///< of the disk's own, counted from the bottom
  std::vector<std::uint64_t> layers;  ///< at least two, bottom first
  std::uint64_t into = 0;

  /// Writes the new layer, on the disk when it returns. Throws Error.
  void run() const;
};

/// A disk that is in use, by one process at a time. Not thread-safe.
class DiskStack final : public BlockTarget {
 public:
  /// A disk is compacted when it has this many layers of its own; only in need those that others share.
  static constexpr std::size_t kManyLayers = 16, kTooManyLayers = 128;
  /// A top with this many runs of sectors is sealed by itself, since a sealed layer has room for a million, as long as
  /// the disk's own layers have less than twice its size.
  static constexpr std::size_t kMostRuns = 1u << 18;

  /// `below`: open files of the layers that lie elsewhere, bottom first, which must be those that it was made on.
  /// Removes what a killed process left. Throws Error, also when another process uses it.
  DiskStack(std::filesystem::path disk, std::vector<UniqueFd> below);

  std::uint64_t size() const override { return stack_->size(); }
  void read(std::uint64_t offset, char* buffer, std::size_t size) override { stack_->read(offset, buffer, size); }
  void write(std::uint64_t offset, std::string_view bytes) override;
  void clear(std::uint64_t offset, std::uint64_t size) override;
  void flush() override;

  /// What was written until now becomes an immutable layer below a new top. Does not wait for the host's disk: that is
  /// the next flush(). When it throws Error, the disk is as before.
  void seal();

  const DiskFacts& facts() const noexcept { return facts_; }
  /// What ought to be compacted now, if anything. One at a time.
  std::optional<Compaction> next_compaction();
  /// Takes what run() has made. The files of the layers that it replaces stay until forget_replaced().
  void accept(const Compaction& compaction);
  void forget_replaced();

 private:
  std::unique_ptr<overlaybd::WritableLayer> open_top() const;
  void seal_when_in_pieces();
  std::uint64_t own_bytes() const;
  overlaybd::SealedLayer open_sealed(std::uint64_t number);
  const std::filesystem::path disk_;
  DiskFacts facts_;
  std::size_t below_ = 0;
  std::optional<overlaybd::Stack> stack_;
  std::vector<std::uint64_t> unflushed_;  ///< sealed layers that may not be whole on the disk
  std::vector<std::uint64_t> replaced_;
  std::uint64_t next_number_ = 1;      ///< that no file has
  std::size_t most_runs_ = kMostRuns;  ///< of the top; more each time that it could not be sealed
};

}  // namespace dsec::layers
