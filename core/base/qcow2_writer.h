#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dsec {

/// Bytes of a cluster in the files that Qcow2Writer makes.
inline constexpr std::uint64_t kQcow2Cluster = 64u << 10;

/// Writes an image in QEMU's format qcow2 (version 3, docs/interop/qcow2.txt there) in one go: what is not put is not
/// there, and reads as zeros or as what lies below. The same content gives the same bytes.
class Qcow2Writer {
 public:
  /// `fd`: an empty file, which stays the caller's. `size`: of the disk in bytes.
  Qcow2Writer(int fd, std::uint64_t size);

  /// The content of the cluster with this number, kQcow2Cluster bytes; numbers only go up. Throws Error.
  void put(std::uint64_t number, std::string_view content);
  /// Nothing is an image before it. Throws Error.
  void finish();

 private:
  std::uint64_t append(std::string_view cluster);
  void end_table();

  const int fd_;
  const std::uint64_t size_;
  std::uint64_t next_;              ///< cluster of the file that is free
  std::vector<std::uint64_t> top_;  ///< entries of the first table
  std::string table_;               ///< of the second that is being filled; empty: none is
  std::uint64_t table_number_ = 0;
};

}  // namespace dsec
