#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "tests/support/fake_rings.h"

namespace dsec::test {

/// A filesystem in memory, mounted through FUSE, that behaves as a 3FS client does where that differs from a local one:
/// mount type, ioctls, names that are remembered for 5 s as missing and for 30 s as they were, no rename flags, no
/// locks, no fsync of directories, errors of writing that show at fsync or close, lost chunks that read as zeros,
/// layout by the directory a file is made in, and 3fs-virt/iovs with rings. Needs root and /dev/fuse.
class FakeThreeFs {
 public:
  explicit FakeThreeFs(const std::filesystem::path& mount_point);
  FakeThreeFs(const FakeThreeFs&) = delete;
  ~FakeThreeFs();

  /// What other hosts do: the kernel here is not told.
  void put_from_elsewhere(const std::filesystem::path& relative, const std::string& content);
  void remove_from_elsewhere(const std::filesystem::path& relative);
  /// The chunks that hold these bytes of a file are gone: they read as zeros, or, at its end, not at all.
  void lose(const std::filesystem::path& relative, std::uint64_t offset, std::uint64_t size);

  std::atomic<bool> answers_magic{true};
  std::atomic<std::uint32_t> interface_version{1};  ///< 0: the ioctl does not exist
  std::atomic<bool> fails_fsync{false};
  std::atomic<bool> fails_close{false};
  std::atomic<bool> corrupts_writes{false};
  std::atomic<std::uint64_t> entry_seconds{30};
  std::atomic<std::uint64_t> bytes_read{0};  ///< through FUSE
  std::atomic<std::uint64_t> opened{0};      ///< files
  FakeRings& rings() noexcept { return rings_; }
  /// Names that a rename replaced, names in another directory than the one the file was made in, and calls that 3FS
  /// does not have.
  std::vector<std::string> replaced() const;
  std::vector<std::string> strayed() const;
  std::vector<std::string> refused() const;

 private:
  struct Node {
    std::uint32_t mode = 0;
    std::uint32_t links = 1;
    std::string content;  ///< of a symlink its target
    std::uint64_t made_in = 0;
    std::uint64_t lost_from = 0, lost_to = 0;
    std::map<std::string, std::uint64_t> children;
  };
  struct Request;
  struct Reply;

  void serve();
  Reply answer(const Request& request);
  Reply entry(std::uint64_t id) const;
  Reply list(const Request& request) const;
  Reply ioctl(const Request& request) const;
  Reply register_memory(const Request& request);
  std::int64_t read_node(std::uint64_t id, std::uint64_t offset, char* to, std::size_t length, bool no_holes) const;
  std::uint64_t find(const std::filesystem::path& relative) const;
  Reply rename(const Request& request, std::string_view from, std::string_view to, std::uint64_t target);
  std::uint64_t make(std::uint64_t parent, std::string_view name, std::uint32_t mode);
  int remove(std::uint64_t parent, std::string_view name);

  std::filesystem::path mount_point_;
  UniqueFd device_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Node> nodes_;
  std::uint64_t next_ = 2, iovs_ = 0;
  std::map<std::uint64_t, pid_t> iovs_open_;  ///< by handle: who opened the directory
  std::vector<std::string> replaced_, strayed_, refused_;
  FakeRings rings_;
  std::thread server_;
};

}  // namespace dsec::test
