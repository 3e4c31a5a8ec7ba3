#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace dsec::engine {

/// One block of a tar stream (POSIX.1-2001 and what GNU tar adds) that begins an entry.
struct TarHeader {
  static constexpr std::size_t kSize = 512;
  struct Field {
    std::size_t at, size;
  };
  /// What holds text: name, link, owner, group, the beginning of a long name.
  static constexpr Field kTexts[] = {{0, 100}, {157, 100}, {265, 32}, {297, 32}, {345, 155}};

  std::string name;  ///< as this block alone has it
  std::string link;  ///< of links
  char type = '0';   ///< '0' file, '1' hard link, '2' symlink, '5' directory, 'x' and 'L' names of what follows, …
  std::uint64_t size = 0;  ///< bytes of content that follow, padded to whole blocks
  std::uint32_t mode = 0;
};

/// Walks over a tar stream that comes in pieces of any size.
class TarWalk {
 public:
  struct Sink {
    /// `at`: of the block, in bytes from the beginning.
    std::function<void(const TarHeader&, std::string_view block, std::uint64_t at)> header;
    /// Content of the entry before; of a stream that is no tar (any more) everything.
    std::function<void(std::string_view data, std::uint64_t at)> data;
  };
  explicit TarWalk(Sink sink) : sink_(std::move(sink)) {}
  void push(std::string_view data);
  /// What came of a last block that was cut goes to `data`.
  void finish();
  /// Something was no header of an entry.
  bool broken() const noexcept { return broken_; }

 private:
  const Sink sink_;
  std::string block_;       ///< of a header, as far as it has come
  std::uint64_t at_ = 0;    ///< of the next byte
  std::uint64_t data_ = 0;  ///< bytes of content to come
  std::uint64_t padding_ = 0;
  bool broken_ = false;
};

/// Writes the checksum that a header must have into its block.
void set_tar_checksum(std::string& block);

/// What the files of a tar stream are, an entry a line, without times: "0644 12 NAME sha256", "link NAME -> TARGET".
/// Two streams of the same files have the same list. At most `most` lines, then one that tells how many there are more.
/// Throws Error when the file cannot be read.
std::string list_tar(int fd, std::size_t most);

/// An entry as a report tells of it.
struct TarEntry {
  std::string path;  ///< its whole name
  char type = '0';
  std::uint64_t size = 0;
};
/// Of the file from its offset 0. Throws Error when it cannot be read.
void for_each_tar_entry(int fd, const std::function<void(const TarEntry&)>& take);

}  // namespace dsec::engine
