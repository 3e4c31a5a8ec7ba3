#include "runners/vm/kernel_archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>

#include <array>
#include <cerrno>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/container/tar_stream.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

using Handle = std::unique_ptr<archive, ArchiveDeleter>;

constexpr std::size_t kChunk = 64 << 10;
/// Debian's largest kernel has 500 MB of modules.
constexpr std::uint64_t kMost = 4ull << 30;

Error failure_of(archive* handle) {
  const char* const message = archive_error_string(handle);
  return failure(message != nullptr ? message : "it is damaged");
}

Handle new_reader() {
  Handle handle(archive_read_new());
  if (!handle) throw std::bad_alloc();
  // Not all that libarchive knows: for some it would start programs of the host.
  for (const auto add :
       {archive_read_support_filter_gzip, archive_read_support_filter_bzip2, archive_read_support_filter_xz,
        archive_read_support_filter_lzma, archive_read_support_filter_zstd})
    if (add(handle.get()) != ARCHIVE_OK) throw failure_of(handle.get());
  archive_read_support_format_tar(handle.get());
  return handle;
}

/// The entries of a tar archive, or of data.tar in a package, which is an archive in an archive.
class Entries {
 public:
  explicit Entries(const fs::path& path) : outer_(new_reader()) {
    archive_read_support_format_ar(outer_.get());
    if (archive_read_open_filename(outer_.get(), path.c_str(), kChunk) != ARCHIVE_OK) throw failure_of(outer_.get());
    first_ = next_of(outer_.get());
    if ((archive_format(outer_.get()) & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_AR) enter_package();
  }

  /// Null at the end.
  archive_entry* next() { return first_ != nullptr ? std::exchange(first_, nullptr) : next_of(handle()); }

  /// Of the entry that next() has given.
  void write_to(const fs::path& path) {
    const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    for (;;) {
      const la_ssize_t got = archive_read_data(handle(), chunk_.data(), chunk_.size());
      if (got < 0) throw failed();
      if (got == 0) return;
      written_ += static_cast<std::uint64_t>(got);
      if (written_ > kMost) throw failure("it has more than 4 GiB");
      write_all(file.get(), {chunk_.data(), static_cast<std::size_t>(got)});
    }
  }

 private:
  archive* handle() { return inner_ ? inner_.get() : outer_.get(); }

  archive_entry* next_of(archive* from) {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(from, &entry);
    if (result == ARCHIVE_EOF) return nullptr;
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) throw failed();
    return entry;
  }

  void enter_package() {
    while (first_ != nullptr) {
      const char* const name = archive_entry_pathname(first_);
      if (name != nullptr && std::string_view(name).starts_with("data.tar")) break;
      first_ = next_of(outer_.get());
    }
    if (first_ == nullptr) throw failure("it is no Debian package, or cut off: it has no data.tar");
    first_ = nullptr;
    inner_ = new_reader();
    if (archive_read_open(inner_.get(), this, nullptr, read_outer, nullptr) != ARCHIVE_OK) throw failed();
  }

  // What the inner archive says of a read that the outer one has failed is of no use.
  Error failed() { return failure_of(archive_error_string(outer_.get()) != nullptr ? outer_.get() : inner_.get()); }

  static la_ssize_t read_outer(archive* inner, void* self, const void** bytes) {
    auto& entries = *static_cast<Entries*>(self);
    const la_ssize_t got = archive_read_data(entries.outer_.get(), entries.outer_chunk_.data(), kChunk);
    *bytes = entries.outer_chunk_.data();
    if (got < 0) archive_set_error(inner, EIO, "the package is cut off");
    return got < 0 ? -1 : got;
  }

  Handle outer_, inner_;
  archive_entry* first_ = nullptr;
  std::array<char, kChunk> outer_chunk_{}, chunk_{};
  std::uint64_t written_ = 0;
};

/// Where an entry goes, below the target, or nothing when it is not wanted.
std::optional<fs::path> wanted(std::string_view name) {
  if (name.starts_with("./")) name.remove_prefix(2);
  if (name.starts_with("usr/lib/modules/")) name.remove_prefix(4);
  const bool kernel = name.starts_with("boot/vmlinuz-") && name.find('/', 5) == std::string_view::npos;
  if (!kernel && !name.starts_with("lib/modules/")) return std::nullopt;
  const fs::path path(name);
  for (const fs::path& part : path)
    if (part == "..") throw failure("the name " + quote(std::string(name)) + " leads out of the package");
  return path;
}

void unpack(const fs::path& archive, const fs::path& target) {
  const auto entries = std::make_unique<Entries>(archive);
  bool found = false;
  while (archive_entry* const entry = entries->next()) {
    const char* const name = archive_entry_pathname(entry);
    // No links: what they lead to is another's.
    if (name == nullptr || archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr)
      continue;
    const std::optional<fs::path> path = wanted(name);
    if (!path) continue;
    make_directories((target / *path).parent_path());
    entries->write_to(target / *path);
    found = true;
  }
  if (!found)
    throw failure("it has no kernel")
        .hint("linux-image-cloud-amd64 only names the package that has: apt-cache depends linux-image-cloud-amd64");
}

}  // namespace

void unpack_kernel_archive(const fs::path& archive, const fs::path& target) {
  attempt("cannot unpack " + quote(archive.native()), [&] { unpack(archive, target); });
}

}  // namespace dsec::runners
