#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "layers/erofs_read/erofs_image.h"
#include "layers/source.h"

namespace dsec::layers {

/// Writes a tree as one PAX archive in the form of an OCI layer: deletions as ".wh.NAME", opaque directories with
/// ".wh..wh..opq". The same calls make the same bytes. Throws Error.
class OciTar {
 public:
  /// Writes to `fd`, which stays the caller's.
  explicit OciTar(int fd);
  ~OciTar();
  OciTar(const OciTar&) = delete;

  /// A file's content follows with data(). Its extents, when they are known and holes are among them, make it sparse in
  /// the archive. Overlay attributes are left out.
  void entry(const Entry& entry, std::span<const ErofsExtent> extents = {});
  void data(std::string_view bytes);
  void deletion(const std::string& path);
  /// Of a directory whose entry came before.
  void opaque(const std::string& path);
  void finish();
  std::uint64_t written() const noexcept;

 private:
  struct Parts;
  void check(int result);
  void end_file();
  void marker(const std::string& path);
  std::unique_ptr<Parts> parts_;
};

}  // namespace dsec::layers
