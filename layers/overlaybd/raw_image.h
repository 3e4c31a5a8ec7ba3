#pragma once

#include <filesystem>

#include "core/base/progress.h"
#include "layers/overlaybd/layer_writer.h"
#include "layers/overlaybd/random_bytes.h"
#include "layers/overlaybd/stack.h"

namespace dsec::layers::overlaybd {

/// A file or block device that holds what a device shall show; zeros follow it.
class RawImage {
 public:
  explicit RawImage(const std::filesystem::path& path);

  /// Bytes, rounded up to whole sectors.
  std::uint64_t size() const noexcept;
  /// Fills `buffer` from a byte on.
  void read(std::uint64_t offset, char* buffer, std::size_t size) const;
  /// Where the next byte lies that is no hole of the file, or size().
  std::uint64_t next_data(std::uint64_t offset) const;

 private:
  std::unique_ptr<RandomBytes> bytes_;
  UniqueFd holes_;  ///< the same file
};

/// Gives `to` what makes a device of `size` bytes (whole sectors) show the image: in 4 KiB blocks, nothing for what
/// `below` (may be null) shows already, zeros for what is zero here and not there. Without a layer below zeros are
/// nothing. Returns the bytes of data given.
std::uint64_t write_raw(const RawImage& raw, const Stack* below, std::uint64_t size, DeviceContents& to,
                        Progress& progress);

}  // namespace dsec::layers::overlaybd
