#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/unique_fd.h"

namespace dsec {

/// open(2) with O_CLOEXEC added; throws Error naming the path.
UniqueFd open_file(const std::filesystem::path& path, int flags, mode_t mode = 0666);

/// The whole content; throws Error naming the path, also when it is larger than `limit` bytes.
std::string read_file(const std::filesystem::path& path, std::uint64_t limit = 64ull << 20);
/// The rest of an open file, up to `limit` bytes.
std::string read_all(int fd, std::uint64_t limit = 64ull << 20);

/// Writes all bytes, retrying short writes; throws Error.
void write_all(int fd, std::string_view bytes);

/// Replaces `path` by `content` so that a crash leaves the old or the new file: temp name in the same directory, fsync,
/// rename, fsync of the directory.
void write_file_atomic(const std::filesystem::path& path, std::string_view content, mode_t mode = 0644);

/// fsync(2) of a directory, so that a rename inside it is durable.
void sync_directory(const std::filesystem::path& directory);

/// mkdir -p with the given mode for the directories made; throws Error.
void make_directories(const std::filesystem::path& path, mode_t mode = 0755);

/// Removes a whole tree below (and with) `path`, never following symlinks and never crossing into a mounted filesystem;
/// a missing path is no error. Throws Error at the first entry that stays.
void remove_tree(const std::filesystem::path& path);

/// A temporary file in `directory` that is unlinked on destruction unless published.
class TempFile {
 public:
  /// The name is ".tmp-<pid>-<start ticks>-<random>": see temp_file_is_stale.
  explicit TempFile(std::filesystem::path directory, mode_t mode = 0600);
  TempFile(TempFile&& other) noexcept;
  TempFile& operator=(TempFile&&) = delete;
  ~TempFile();

  int fd() const noexcept { return fd_.get(); }
  const std::filesystem::path& path() const noexcept { return path_; }
  /// fsync, rename to `target` (same filesystem), fsync of its directory.
  void publish(const std::filesystem::path& target);

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

/// Whether a name in the form of TempFile and TempDirectory was made by a process that is gone. False for all other
/// names. Only for files of this host.
bool temp_file_is_stale(std::string_view name);

/// A temporary directory below `parent`, removed with its content on destruction.
class TempDirectory {
 public:
  explicit TempDirectory(const std::filesystem::path& parent);
  TempDirectory(TempDirectory&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TempDirectory& operator=(TempDirectory&&) = delete;
  ~TempDirectory();
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// An advisory lock on an open file description (fcntl F_OFD_SETLKW), released on destruction.
class FileLock {
 public:
  enum class Mode { Shared, Exclusive };
  /// Waits; the file is made when missing.
  FileLock(const std::filesystem::path& path, Mode mode);
  /// Does not wait: an object that converts to false did not get the lock.
  static FileLock try_lock(const std::filesystem::path& path, Mode mode);
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  int fd() const noexcept { return fd_.get(); }

 private:
  FileLock() = default;
  UniqueFd fd_;
};

}  // namespace dsec
