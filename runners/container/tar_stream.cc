#include "runners/container/tar_stream.h"

#include <archive.h>
#include <archive_entry.h>

#include <cerrno>
#include <initializer_list>
#include <new>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

constexpr std::size_t kBlock = 64 << 10;

Error archive_failure(archive* handle, const std::string& attempt) {
  const char* message = archive_error_string(handle);
  const int number = archive_errno(handle);
  // libarchive calls each failed write the same; that nobody reads any more is something its callers ask for.
  if (number == EPIPE) return failure(errno_text(number)).context(attempt);
  return failure(message != nullptr ? message : errno_text(number)).context(attempt);
}

void check(archive* handle, int result, const char* attempt) {
  // A warning: for instance, a name is no UTF-8 or not of our locale, and is kept as the bytes it is.
  if (result != ARCHIVE_OK && result != ARCHIVE_WARN) throw archive_failure(handle, attempt);
}

}  // namespace

void ArchiveDeleter::operator()(archive* handle) const noexcept { archive_free(handle); }
void ArchiveDeleter::operator()(archive_entry* entry) const noexcept { archive_entry_free(entry); }

ArchiveEntry new_entry() {
  ArchiveEntry entry(archive_entry_new());
  if (!entry) throw std::bad_alloc();
  return entry;
}

TarWriter::TarWriter(int fd) : handle_(archive_write_new()) {
  if (!handle_) throw std::bad_alloc();
  check(handle_.get(), archive_write_set_format_pax(handle_.get()), "begin the tar stream");
  check(handle_.get(), archive_write_set_bytes_in_last_block(handle_.get(), 1), "begin the tar stream");
  check(handle_.get(), archive_write_open_fd(handle_.get(), fd), "begin the tar stream");
}

void TarWriter::begin(archive_entry* entry) {
  check(handle_.get(), archive_write_header(handle_.get(), entry), "write the tar stream");
}

void TarWriter::data(const char* bytes, std::size_t size) {
  while (size > 0) {
    const la_ssize_t put = archive_write_data(handle_.get(), bytes, size);
    if (put < 0) throw archive_failure(handle_.get(), "write the tar stream");
    if (put == 0) return;  // more than the header announced
    bytes += put;
    size -= static_cast<std::size_t>(put);
  }
}

void TarWriter::finish() { check(handle_.get(), archive_write_close(handle_.get()), "end the tar stream"); }

TarReader::TarReader(int fd) : handle_(archive_read_new()) {
  if (!handle_) throw std::bad_alloc();
  // Not all that libarchive knows: for some it would start programs of the host.
  for (const auto add : {archive_read_support_filter_gzip, archive_read_support_filter_bzip2,
                         archive_read_support_filter_xz, archive_read_support_filter_zstd})
    check(handle_.get(), add(handle_.get()), "read the tar stream");
  archive_read_support_format_tar(handle_.get());
  archive_read_support_format_empty(handle_.get());
  check(handle_.get(), archive_read_open_fd(handle_.get(), fd, kBlock), "read the tar stream");
}

archive_entry* TarReader::next() {
  archive_entry* entry = nullptr;
  const int result = archive_read_next_header(handle_.get(), &entry);
  if (result == ARCHIVE_EOF) return nullptr;
  check(handle_.get(), result, "read the tar stream");
  return entry;
}

void TarReader::data(const std::function<void(const char*, std::size_t, std::int64_t)>& sink) {
  for (;;) {
    const void* block = nullptr;
    std::size_t size = 0;
    la_int64_t offset = 0;
    const int result = archive_read_data_block(handle_.get(), &block, &size, &offset);
    if (result == ARCHIVE_EOF) return;
    check(handle_.get(), result, "read the tar stream");
    sink(static_cast<const char*>(block), size, offset);
  }
}

}  // namespace dsec::runners
