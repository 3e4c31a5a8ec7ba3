#pragma once

#include <functional>
#include <memory>
#include <string>

struct archive;
struct archive_entry;

namespace dsec::runners {

/// libarchive's handles, closed without errors; who must know calls finish().
struct ArchiveDeleter {
  void operator()(archive* handle) const noexcept;
  void operator()(archive_entry* entry) const noexcept;
};
using ArchiveEntry = std::unique_ptr<archive_entry, ArchiveDeleter>;
ArchiveEntry new_entry();

/// Writes a pax stream to a descriptor that stays the caller's. Every call throws Error with libarchive's message.
class TarWriter {
 public:
  explicit TarWriter(int fd);
  void begin(archive_entry* entry);
  void data(const char* bytes, std::size_t size);
  /// End of the stream.
  void finish();

 private:
  std::unique_ptr<archive, ArchiveDeleter> handle_;
};

/// Reads a tar stream: plain, or compressed with gzip, bzip2, xz or zstd.
class TarReader {
 public:
  explicit TarReader(int fd);
  /// The next entry, or null at the end; belongs to the reader.
  archive_entry* next();
  /// Calls sink(bytes, size, offset) for each block of data of the present entry; holes are skipped.
  void data(const std::function<void(const char*, std::size_t, std::int64_t)>& sink);

 private:
  std::unique_ptr<archive, ArchiveDeleter> handle_;
};

}  // namespace dsec::runners
