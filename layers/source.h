#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/progress.h"
#include "core/model/layer_manifest.h"

namespace dsec::layers {

enum class EntryType { File, Directory, Symlink, HardLink, CharDevice, BlockDevice, Fifo };

/// Seconds since 1970, which may be negative, and nanoseconds 0..999999999 after them.
struct Timestamp {
  std::int64_t seconds = 0;
  std::uint32_t nanoseconds = 0;
  bool operator==(const Timestamp&) const = default;
};

/// One entry of a layer's tree in normal form. Names and values are bytes.
struct Entry {
  std::string path;  ///< relative to the root, which is "": no leading, trailing or double '/', no "." or ".."
  EntryType type = EntryType::File;
  std::uint32_t mode = 0;  ///< the 12 permission bits
  std::uint32_t uid = 0, gid = 0;
  Timestamp mtime;
  std::uint64_t size = 0;  ///< of a File
  std::string target;      ///< of a Symlink: its text; of a HardLink: the path of an entry that came earlier
  std::uint32_t major = 0, minor = 0;         ///< of a device
  std::map<std::string, std::string> xattrs;  ///< full names: "security.capability", "user.x", "trusted.overlay.opaque"
};

/// Where a source sends its tree: each path once, parents before children (an absent parent is an implicit one), the
/// target of a hard link before the link. A character device 0:0 is a whiteout, "trusted.overlay.opaque" = "y" an
/// opaque directory: a source makes them only for deletions it means. Throws Error to stop the source.
class TreeSink {
 public:
  virtual ~TreeSink() = default;
  virtual void entry(const Entry& entry) = 0;
  /// Content of the File entry before, in pieces that sum up to its size.
  virtual void data(std::string_view bytes) = 0;
};

/// Bounds on what an input may unpack to; each is a flag of `dsec import`. 0 is not "unlimited".
struct InputLimits {
  std::uint64_t unpacked_bytes = 1ull << 40;
  std::uint64_t entries = 20'000'000;
  std::uint64_t path_bytes = 4096;
  /// Unpacked over packed size, looked at from 64 MiB on: 1000 is what gzip reaches on zeros (1032).
  std::uint64_t ratio = 1000;
};

struct SourceOptions {
  std::string platform;                          ///< "linux/amd64"; empty: this host's
  std::uint64_t collapse_limit = 3'000'000'000;  ///< bytes of unpacked input per image
  InputLimits limits;
};

/// What is known of an input once it was examined.
struct SourceFacts {
  std::size_t images = 1;  ///< how many images emit() can be asked for, bottom to top
  std::string platform;    ///< empty when the input says nothing of it
  ImageConfig config;
  Provenance provenance;  ///< source and inputs; the rest is filled in by whoever makes the layer
  /// Decides the UUID: same input, same value, wherever it lies.
  Digest identity = Digest::of("");
  std::vector<std::string> warnings;
};

/// Something a layer can be made of. examine() once, then emit() for each image in any order.
class Source {
 public:
  virtual ~Source() = default;
  /// Reads whatever is needed to verify digests and limits and to know the tree; keeps no content in memory. Throws
  /// Error naming the entry that is wrong.
  virtual SourceFacts examine(const SourceOptions& options, Progress& progress) = 0;
  virtual void emit(std::size_t image, TreeSink& sink) = 0;
};

}  // namespace dsec::layers
