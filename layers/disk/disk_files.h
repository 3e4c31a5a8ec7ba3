#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dsec::layers {

/// What stack.json of a disk or a snapshot tells (man dsec-disk). Layers are numbers, bottom first.
struct DiskFacts {
  std::uint64_t size = 0;             ///< bytes
  std::vector<std::string> below;     ///< UUIDs of the layers that lie elsewhere
  std::vector<std::uint64_t> layers;  ///< sealed ones of its own
  std::uint64_t top = 0;              ///< the one that is written to; 0: a snapshot

  /// Throws Error.
  static DiskFacts read(const std::filesystem::path& disk);
  /// A crash leaves the old or the new file.
  void write(const std::filesystem::path& disk) const;
  /// Of a directory that has no name yet: not made durable.
  void write_new(const std::filesystem::path& disk) const;

 private:
  std::string text() const;
};

/// Where a layer's bytes are, and the index of one that is written to.
std::filesystem::path layer_file(const std::filesystem::path& disk, std::uint64_t number);
std::filesystem::path index_file(const std::filesystem::path& disk, std::uint64_t number);

/// Makes the two files of an empty layer that is written to.
void make_top(const std::filesystem::path& disk, std::uint64_t number, std::uint64_t size, const std::string& parent);

/// They are on the disk when it returns.
void sync_top(const std::filesystem::path& disk, std::uint64_t number);

/// Removes what stack.json does not tell of: what was killed had begun to make it, or to remove it.
void remove_unnamed(const std::filesystem::path& disk, const DiskFacts& facts);

}  // namespace dsec::layers
