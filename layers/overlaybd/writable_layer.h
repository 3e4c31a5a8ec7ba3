#pragma once

#include <filesystem>
#include <string_view>

#include "core/base/unique_fd.h"
#include "layers/overlaybd/extent_map.h"
#include "layers/overlaybd/layer_header.h"

namespace dsec::layers::overlaybd {

/// A layer that can be written to: a data file and an index file that only grow (man dsec-overlaybd). Not thread-safe;
/// one process at a time may have it open for writing.
class WritableLayer {
 public:
  enum class Access { Read, Write };

  /// Makes one of two empty files. Of `facts` only size, UUIDs and message count.
  static void create(int data, int index, LayerHeader facts);

  /// Reads the index; what a crash left at its end is passed over, and cut off when it is opened for writing. Throws
  /// Error for what man dsec-overlaybd refuses, and when another process has it open for writing. Without an `index`
  /// the layer must be a sparse one, which can only be read. Needs some 80 bytes of memory for each run of sectors.
  WritableLayer(const std::filesystem::path& data, const std::filesystem::path& index, Access access);

  const LayerHeader& facts() const noexcept { return facts_; }
  const std::string& name() const noexcept { return name_; }
  const ExtentMap& extents() const noexcept { return extents_; }
  bool is_sparse() const noexcept { return !index_; }
  /// Bytes of both files.
  std::uint64_t stored() const noexcept { return data_end_ + index_end_; }
  /// Bytes at the end of the index that a crash left.
  std::uint64_t passed_over() const noexcept { return passed_over_; }

  /// From a byte of the data file, as mappings tell it.
  void read(std::uint64_t offset, char* buffer, std::size_t size) const;

  /// `offset` and size are bytes, whole sectors, and lie within the device. What is written survives a crash of this
  /// process at once, and one of the machine after the next flush(). After an Error the layer is as before.
  void write(std::uint64_t offset, std::string_view bytes);
  /// Makes sectors zero, whatever the layers below have.
  void discard(std::uint64_t offset, std::uint64_t size);
  /// Like write(), but sectors that the layer has are written over where they lie, so that its files grow by what is
  /// new to it alone. After an Error a part may have been written.
  void write_over(std::uint64_t offset, std::string_view bytes);
  /// Makes bytes of the data file zero that mappings tell of, and gives their room back where the filesystem can.
  void clear(std::uint64_t place, std::uint64_t size);
  /// Everything written so far is on the disk when it returns.
  void flush();
  /// Makes the data file that of a sealed layer (man dsec-overlaybd), which needs its index no more. Takes the time of
  /// its mappings, not of its data, and flushes nothing. After it nothing may be written; after an Error the layer is
  /// as before.
  void seal();

 private:
  void open_index(const std::filesystem::path& path, Access access);
  void read_index();
  void find_runs();
  void append(const Mapping& mapping);
  void check_range(std::uint64_t offset, std::uint64_t size) const;

  std::string name_;  ///< as it is shown
  UniqueFd data_, index_;
  std::uint64_t data_end_ = 0, index_end_ = 0;  ///< where the next bytes go
  std::uint64_t passed_over_ = 0;
  LayerHeader facts_;
  ExtentMap extents_;
};

}  // namespace dsec::layers::overlaybd
