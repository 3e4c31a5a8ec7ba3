#include "runners/vm/unpacked.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <new>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "runners/container/tar_stream.h"

namespace dsec::runners {
namespace {

using Handle = std::unique_ptr<archive, ArchiveDeleter>;

constexpr std::size_t kChunk = 64 << 10;

Error damaged(archive* handle) {
  const char* const message = archive_error_string(handle);
  return failure(message != nullptr ? message : "it is damaged");
}

bool is_compressed(std::string_view bytes) {
  constexpr std::array<std::string_view, 6> kMagics = {std::string_view("\x1f\x8b", 2),
                                                       std::string_view("BZh", 3),
                                                       std::string_view("\xfd"
                                                                        "7zXZ\0",
                                                                        6),
                                                       std::string_view("\x5d\0\0", 3),
                                                       std::string_view("\x04\x22\x4d\x18", 4),
                                                       std::string_view("\x28\xb5\x2f\xfd", 4)};
  return std::any_of(kMagics.begin(), kMagics.end(), [&](std::string_view magic) { return bytes.starts_with(magic); });
}

}  // namespace

std::string unpack(std::string_view bytes, std::uint64_t limit) {
  const Handle handle(archive_read_new());
  if (!handle) throw std::bad_alloc();
  // Not all that libarchive knows: for some it would start programs of the host.
  for (const auto add :
       {archive_read_support_filter_gzip, archive_read_support_filter_bzip2, archive_read_support_filter_xz,
        archive_read_support_filter_lzma, archive_read_support_filter_lz4, archive_read_support_filter_zstd})
    if (add(handle.get()) != ARCHIVE_OK) throw damaged(handle.get());
  archive_read_support_format_raw(handle.get());
  archive_entry* entry = nullptr;
  if (archive_read_open_memory(handle.get(), bytes.data(), bytes.size()) != ARCHIVE_OK ||
      archive_read_next_header(handle.get(), &entry) != ARCHIVE_OK)
    throw damaged(handle.get());
  if (archive_filter_count(handle.get()) < 2) throw failure("it is not compressed in a known way");
  std::string out;
  std::array<char, kChunk> chunk;
  for (;;) {
    const la_ssize_t got = archive_read_data(handle.get(), chunk.data(), chunk.size());
    if (got < 0) throw damaged(handle.get());
    if (got == 0) return out;
    if (out.size() + static_cast<std::size_t>(got) > limit)
      throw failure("unpacked it has more than " + format_size(limit));
    out.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

std::string read_unpacked(const std::filesystem::path& path, std::uint64_t limit) {
  std::string bytes = read_file(path, limit);
  if (!is_compressed(bytes)) return bytes;
  return attempt("cannot unpack " + quote(path.native()), [&] { return unpack(bytes, limit); });
}

}  // namespace dsec::runners
