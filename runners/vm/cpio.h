#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsec::runners {

/// Writes the archive that the kernel unpacks as an initramfs ("newc"): everything belongs to root and has no time, so
/// that the same content gives the same bytes.
class CpioWriter {
 public:
  /// Parents come before what lies in them. Throws Error (Internal) for what the format cannot hold.
  void directory(std::string_view path, std::uint32_t mode = 0755);
  void file(std::string_view path, std::string_view content, std::uint32_t mode = 0644);
  void character_device(std::string_view path, std::uint32_t major, std::uint32_t minor, std::uint32_t mode = 0600);
  /// The whole archive; nothing can be added after it.
  std::string finish();

 private:
  void add(std::string_view path, std::uint32_t mode, std::string_view content, std::uint32_t major = 0,
           std::uint32_t minor = 0);
  void pad();

  std::string out_;
  std::uint32_t next_inode_ = 1;
};

}  // namespace dsec::runners
