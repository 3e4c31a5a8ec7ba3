#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/little_endian.h"
#include "core/base/unique_fd.h"

namespace dsec::layers {

/// Random reads from a file whose size was taken once, with a small cache of 64 KiB windows.
class MetaReader {
 public:
  MetaReader(UniqueFd file, std::string name);
  std::uint64_t size() const noexcept { return size_; }
  const std::string& name() const noexcept { return name_; }
  /// Throws Error when the range does not lie within the file.
  std::string read(std::uint64_t offset, std::size_t length);
  void read_into(std::uint64_t offset, char* buffer, std::size_t length);

  /// "image NAME is damaged: WHAT".
  Error damaged(const std::string& what) const;

 private:
  struct Window {
    std::uint64_t number = ~0ull;
    std::string bytes;
  };
  const Window& window(std::uint64_t number);

  UniqueFd file_;
  std::string name_;
  std::uint64_t size_ = 0;
  std::vector<Window> windows_;
};

}  // namespace dsec::layers
