#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace dsec::registry {

/// Memory that is mapped from a file and shared with whoever else maps that. Move-only.
class SharedMemory {
 public:
  /// Makes the file, which must not exist, for our user alone. Its space is taken at once, since touching memory that
  /// tmpfs has no room for later would kill us. Throws Error.
  static SharedMemory create(const std::filesystem::path& file, std::size_t size);
  /// Maps the first `size` bytes of a regular file. Throws Error, also when it is shorter.
  static SharedMemory open(const std::filesystem::path& file, std::size_t size);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  /// Unmaps it, and unlinks a file that was made.
  ~SharedMemory();

  std::byte* data() const noexcept { return data_; }
  /// The file that was made; empty once its name is forgotten.
  const std::filesystem::path& file() const noexcept { return made_; }
  /// Unlinks a file that was made: whoever has mapped it keeps the memory.
  void forget_name() noexcept;

 private:
  SharedMemory(std::filesystem::path made, int fd, std::size_t size);
  std::filesystem::path made_;  ///< to be unlinked; empty otherwise
  std::byte* data_ = nullptr;
  std::size_t size_;
};

}  // namespace dsec::registry
