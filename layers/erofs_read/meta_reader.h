#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::layers {

/// Little-endian fields of a structure that was read.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  std::uint8_t u8(std::size_t at) const { return static_cast<unsigned char>(bytes_.at(at)); }
  std::uint16_t u16(std::size_t at) const { return static_cast<std::uint16_t>(u8(at) | u8(at + 1) << 8); }
  std::uint32_t u32(std::size_t at) const { return u16(at) | static_cast<std::uint32_t>(u16(at + 2)) << 16; }
  std::uint64_t u64(std::size_t at) const { return u32(at) | static_cast<std::uint64_t>(u32(at + 4)) << 32; }

 private:
  std::string_view bytes_;
};

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
