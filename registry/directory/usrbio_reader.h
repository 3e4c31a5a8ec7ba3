#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "registry/directory/usrbio_ring.h"

namespace dsec::registry {

/// Reads files of a 3FS mount through rings of its client, past FUSE. Never more than a faster way: what does not come
/// so (another filesystem, a client of another version, one that refuses, stalls or answers nonsense) is left to the
/// caller to read as from any file, and told once. Any number of threads.
class UsrbioReader {
 public:
  using Note = std::function<void(const std::string&)>;

  /// Nothing is done before the first read. `directory` lies on the mount; `note` is told why rings are not used.
  /// `patience` is how long the client may give no result.
  UsrbioReader(std::filesystem::path directory, Note note, std::chrono::milliseconds patience);
  UsrbioReader(const UsrbioReader&) = delete;

  /// Hands the bytes from `offset` on to `take`, in order, and returns how many: all `length`, or as far as they came
  /// before something went wrong. They are unverified, and `take` must copy before it looks (UsrbioRing::read). Throws
  /// what `take` throws.
  std::uint64_t read(int file, std::uint64_t offset, std::uint64_t length, const UsrbioRing::Take& take);

  /// What was read turned out wrong: no more reads.
  void distrust();

 private:
  struct Connection {
    std::filesystem::path registration;
    dev_t device;  ///< inode numbers of other filesystems mean nothing to the client
  };

  std::optional<Connection> connect() const;
  std::optional<Connection> connection();
  std::unique_ptr<UsrbioRing> borrow(const Connection& connection);
  void give_back(std::unique_ptr<UsrbioRing> ring);
  void drop(std::unique_ptr<UsrbioRing> ring);
  void stop(const std::string& why);
  void tell(const std::string& what);

  const std::filesystem::path directory_;
  const Note note_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::optional<Connection> connection_;
  bool tried_ = false, off_ = false, making_ = false;
  std::size_t rings_ = 0, most_;  ///< idle or borrowed; of which there may be so many
  std::vector<std::unique_ptr<UsrbioRing>> idle_;
  std::set<std::string> told_;
};

}  // namespace dsec::registry
