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

namespace dsec::test {

/// A filesystem in memory, mounted through FUSE, that behaves as a 3FS client does where that differs from a local one:
/// mount type, ioctl, names that are remembered for 5 s as missing and for 30 s as they were, no rename flags, no
/// locks, no fsync of directories, errors of writing that show at fsync. Needs root and /dev/fuse.
class FakeThreeFs {
 public:
  explicit FakeThreeFs(const std::filesystem::path& mount_point);
  FakeThreeFs(const FakeThreeFs&) = delete;
  ~FakeThreeFs();

  /// What other hosts do: the kernel here is not told.
  void put_from_elsewhere(const std::filesystem::path& relative, const std::string& content);

  std::atomic<bool> answers_magic{true};
  std::atomic<bool> fails_fsync{false};
  std::atomic<bool> corrupts_writes{false};
  /// Names that a rename replaced, and calls that 3FS does not have.
  std::vector<std::string> replaced() const;
  std::vector<std::string> refused() const;

 private:
  struct Node {
    std::uint32_t mode = 0;
    std::uint32_t links = 1;
    std::string content;
    std::map<std::string, std::uint64_t> children;
  };
  struct Request;
  struct Reply;

  void serve();
  Reply answer(const Request& request);
  Reply entry(std::uint64_t id) const;
  Reply list(const Request& request) const;
  Reply ioctl(const Request& request) const;
  Reply rename(const Request& request, std::string_view from, std::string_view to, std::uint64_t target);
  std::uint64_t make(std::uint64_t parent, std::string_view name, std::uint32_t mode);
  int remove(std::uint64_t parent, std::string_view name);

  std::filesystem::path mount_point_;
  UniqueFd device_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Node> nodes_;
  std::uint64_t next_ = 2;
  std::vector<std::string> replaced_, refused_;
  std::thread server_;
};

}  // namespace dsec::test
