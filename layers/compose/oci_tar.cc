#include "layers/compose/oci_tar.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <exception>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {

using EntryPtr = std::unique_ptr<archive_entry, decltype(&archive_entry_free)>;

unsigned file_type(const Entry& entry) {
  switch (entry.type) {
    case EntryType::Directory:
      return AE_IFDIR;
    case EntryType::Symlink:
      return AE_IFLNK;
    case EntryType::CharDevice:
      return AE_IFCHR;
    case EntryType::BlockDevice:
      return AE_IFBLK;
    case EntryType::Fifo:
      return AE_IFIFO;
    default:
      return AE_IFREG;
  }
}

EntryPtr header_of(const Entry& entry) {
  EntryPtr out(archive_entry_new(), &archive_entry_free);
  archive_entry_copy_pathname(out.get(), entry.path.empty() ? "./" : entry.path.c_str());
  archive_entry_set_filetype(out.get(), file_type(entry));
  archive_entry_set_perm(out.get(), entry.mode);
  archive_entry_set_uid(out.get(), entry.uid);
  archive_entry_set_gid(out.get(), entry.gid);
  archive_entry_set_mtime(out.get(), entry.mtime.seconds, static_cast<long>(entry.mtime.nanoseconds));
  archive_entry_set_size(out.get(), static_cast<la_int64_t>(entry.size));
  if (entry.type == EntryType::Symlink) archive_entry_copy_symlink(out.get(), entry.target.c_str());
  if (entry.type == EntryType::CharDevice || entry.type == EntryType::BlockDevice) {
    archive_entry_set_rdevmajor(out.get(), entry.major);
    archive_entry_set_rdevminor(out.get(), entry.minor);
  }
  for (const auto& [name, value] : entry.xattrs)
    if (!name.starts_with("trusted.overlay."))
      archive_entry_xattr_add_entry(out.get(), name.c_str(), value.data(), value.size());
  if (entry.type == EntryType::HardLink) {
    archive_entry_copy_hardlink(out.get(), entry.target.c_str());
    archive_entry_unset_size(out.get());
  }
  return out;
}

void add_holes(archive_entry* out, std::span<const ErofsExtent> extents, std::uint64_t size) {
  if (std::none_of(extents.begin(), extents.end(), [](const ErofsExtent& part) { return part.hole; })) return;
  for (const ErofsExtent& part : extents)
    if (!part.hole)
      archive_entry_sparse_add_entry(out, static_cast<la_int64_t>(part.offset), static_cast<la_int64_t>(part.length));
  // The list must end with the file, also when that ends with a hole.
  if (extents.back().hole) archive_entry_sparse_add_entry(out, static_cast<la_int64_t>(size), 0);
}

// A file of such a name is one like any other here, and would delete another where the archive is unpacked.
void refuse_marker_name(const std::string& path) {
  if (path.starts_with(".wh.") || path.find("/.wh.") != std::string::npos)
    throw refusal(Refusal::NotRepresentable,
                  quote("/" + path) + " has a name that means a deletion in the layer of an image")
        .hint("rename it");
}

}  // namespace

// What fails while libarchive writes is kept and thrown by whoever called it.
struct OciTar::Parts {
  int fd;
  std::uint64_t written = 0;
  std::exception_ptr failed;
  bool in_file = false;
  std::unique_ptr<archive, decltype(&archive_write_free)> writer{archive_write_new(), &archive_write_free};

  static la_ssize_t write(archive* writer, void* self, const void* bytes, std::size_t size) {
    auto* parts = static_cast<Parts*>(self);
    try {
      write_all(parts->fd, {static_cast<const char*>(bytes), size});
      parts->written += size;
      return static_cast<la_ssize_t>(size);
    } catch (...) {
      parts->failed = std::current_exception();
      archive_set_error(writer, EIO, "write failed");
      return -1;
    }
  }
};

OciTar::OciTar(int fd) : parts_(new Parts{.fd = fd, .failed = nullptr}) {
  archive* const writer = parts_->writer.get();
  archive_write_set_format_pax(writer);
  // One form of each xattr is enough. Names that are not ASCII are written as bytes, which libarchive does because it
  // cannot convert them in the C locale.
  check(archive_write_set_options(writer, "pax:xattrheader=SCHILY"));
  archive_write_set_bytes_per_block(writer, 64 << 10);
  archive_write_set_bytes_in_last_block(writer, 1);
  check(archive_write_open(writer, parts_.get(), nullptr, &Parts::write, nullptr));
}

OciTar::~OciTar() {
  // Without finish() the archive is not whole, and nobody is to be told of what cannot be written any more.
  archive_write_fail(parts_->writer.get());
}

std::uint64_t OciTar::written() const noexcept { return parts_->written; }

void OciTar::check(int result) {
  if (parts_->failed) std::rethrow_exception(parts_->failed);
  if (result < ARCHIVE_WARN)
    throw failure(std::string("write a tar archive: ") + archive_error_string(parts_->writer.get()));
}

void OciTar::end_file() {
  if (std::exchange(parts_->in_file, false)) check(archive_write_finish_entry(parts_->writer.get()));
}

void OciTar::entry(const Entry& entry, std::span<const ErofsExtent> extents) {
  refuse_marker_name(entry.path);
  end_file();
  const EntryPtr header = header_of(entry);
  add_holes(header.get(), extents, entry.size);
  check(archive_write_header(parts_->writer.get(), header.get()));
  parts_->in_file = entry.type == EntryType::File;
}

void OciTar::data(std::string_view bytes) {
  while (!bytes.empty()) {
    const la_ssize_t taken = archive_write_data(parts_->writer.get(), bytes.data(), bytes.size());
    if (taken <= 0) check(ARCHIVE_FATAL);
    bytes.remove_prefix(static_cast<std::size_t>(taken));
  }
}

// A file of no bytes that says what is deleted.
void OciTar::marker(const std::string& path) {
  end_file();
  const EntryPtr marker(archive_entry_new(), &archive_entry_free);
  archive_entry_copy_pathname(marker.get(), path.c_str());
  archive_entry_set_filetype(marker.get(), AE_IFREG);
  archive_entry_set_perm(marker.get(), 0644);
  archive_entry_set_size(marker.get(), 0);
  archive_entry_set_mtime(marker.get(), 0, 0);
  check(archive_write_header(parts_->writer.get(), marker.get()));
}

void OciTar::deletion(const std::string& path) {
  refuse_marker_name(path);
  const std::size_t name = path.rfind('/') + 1;
  marker(path.substr(0, name) + ".wh." + path.substr(name));
}

void OciTar::opaque(const std::string& path) { marker((path.empty() ? "" : path + "/") + ".wh..wh..opq"); }

void OciTar::finish() {
  end_file();
  check(archive_write_close(parts_->writer.get()));
}

}  // namespace dsec::layers
