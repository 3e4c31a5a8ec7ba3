#include "layers/compose/export_layer.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/compose/contents.h"
#include "layers/compose/merged_tree.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kPiece = 1 << 20;  // bytes written at a time

// Where libarchive sends its bytes. What fails in the callback is kept and thrown by whoever called libarchive.
struct Output {
  int fd;
  std::uint64_t written = 0;
  std::exception_ptr failed;

  static la_ssize_t write(archive* writer, void* self, const void* bytes, std::size_t size) {
    auto* output = static_cast<Output*>(self);
    try {
      write_all(output->fd, {static_cast<const char*>(bytes), size});
      output->written += size;
      return static_cast<la_ssize_t>(size);
    } catch (...) {
      output->failed = std::current_exception();
      archive_set_error(writer, EIO, "write failed");
      return -1;
    }
  }
};

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

class Export {
 public:
  Export(engine::LayerStore& store, const engine::StoredLayer& layer, int fd, Progress& progress)
      : tree_(store, std::span(&layer, 1), MergedTree::Contents::Yes),
        contents_(store, tree_),
        output_{fd, 0, nullptr},
        archive_(archive_write_new(), &archive_write_free),
        implicit_(layer.manifest.implicit_parents.begin(), layer.manifest.implicit_parents.end()),
        step_("export " + layer.manifest.name.str()),
        total_(layer.manifest.total_size()),
        progress_(progress) {
    archive_write_set_format_pax(archive_.get());
    // One form of each xattr is enough. Names that are not ASCII are written as bytes, which libarchive does because it
    // cannot convert them in the C locale.
    check(archive_write_set_options(archive_.get(), "pax:xattrheader=SCHILY"));
    archive_write_set_bytes_per_block(archive_.get(), 64 << 10);
    archive_write_set_bytes_in_last_block(archive_.get(), 1);
    check(archive_write_open(archive_.get(), &output_, nullptr, &Output::write, nullptr));
  }

  std::uint64_t run() {
    progress_.begin(step_);
    walk_merged(tree_, [this](const std::string& path, const MergedNode& node) {
      put(path, node);
      progress_.advance(step_, output_.written, total_);
      return true;
    });
    check(archive_write_close(archive_.get()));
    progress_.end(step_, "");
    return output_.written;
  }

 private:
  using EntryPtr = std::unique_ptr<archive_entry, decltype(&archive_entry_free)>;

  void check(int result) {
    if (output_.failed) std::rethrow_exception(output_.failed);
    if (result < ARCHIVE_WARN)
      throw failure(std::string("write a tar archive: ") + archive_error_string(archive_.get()));
  }

  // A file of no bytes that says what is deleted.
  void put_marker(const std::string& path) {
    const EntryPtr marker(archive_entry_new(), &archive_entry_free);
    archive_entry_copy_pathname(marker.get(), path.c_str());
    archive_entry_set_filetype(marker.get(), AE_IFREG);
    archive_entry_set_perm(marker.get(), 0644);
    archive_entry_set_size(marker.get(), 0);
    archive_entry_set_mtime(marker.get(), 0, 0);
    check(archive_write_header(archive_.get(), marker.get()));
  }

  void put(const std::string& path, const MergedNode& node) {
    if (node.is_whiteout()) {
      const std::size_t name = path.rfind('/') + 1;
      return put_marker(path.substr(0, name) + ".wh." + path.substr(name));
    }
    if (node.is_directory() && !node.opaque && implicit_.contains(path)) return;
    const StackedInode& top = node.top();
    const Entry entry = to_entry(tree_.image(top.image), path, top.inode);
    const EntryPtr out = header(path, entry);
    if (!node.is_directory() && top.inode.nlink > 1) {
      const auto [first, is_new] = links_.try_emplace({top.image, top.inode.nid}, path);
      if (!is_new) {
        archive_entry_copy_hardlink(out.get(), first->second.c_str());
        archive_entry_unset_size(out.get());
        return check(archive_write_header(archive_.get(), out.get()));
      }
    }
    std::vector<ErofsExtent> parts;
    if (entry.type == EntryType::File) parts = data_parts(top, out.get());
    check(archive_write_header(archive_.get(), out.get()));
    for (const ErofsExtent& part : parts) put_data(top, path, part);
    if (entry.type == EntryType::File) check(archive_write_finish_entry(archive_.get()));
    if (node.opaque) put_marker((path.empty() ? "" : path + "/") + ".wh..wh..opq");
  }

  EntryPtr header(const std::string& path, const Entry& entry) {
    EntryPtr out(archive_entry_new(), &archive_entry_free);
    archive_entry_copy_pathname(out.get(), path.empty() ? "./" : path.c_str());
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
    return out;
  }

  // The parts of a file; when there are holes among them, the header gets the list of the others.
  std::vector<ErofsExtent> data_parts(const StackedInode& file, archive_entry* out) {
    std::vector<ErofsExtent> parts;
    contents_.extents(file, [&](const ErofsExtent& part) { parts.push_back(part); });
    if (std::none_of(parts.begin(), parts.end(), [](const ErofsExtent& part) { return part.hole; })) return parts;
    for (const ErofsExtent& part : parts)
      if (!part.hole)
        archive_entry_sparse_add_entry(out, static_cast<la_int64_t>(part.offset), static_cast<la_int64_t>(part.length));
    // The list must end with the file, also when that ends with a hole.
    if (parts.back().hole) archive_entry_sparse_add_entry(out, static_cast<la_int64_t>(file.inode.size), 0);
    return parts;
  }

  // libarchive is given the zeros of holes too, and drops them.
  void put_data(const StackedInode& file, const std::string& path, const ErofsExtent& part) {
    buffer_.assign(kPiece, '\0');
    for (std::uint64_t done = 0; done < part.length;) {
      std::size_t piece = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, part.length - done));
      if (!part.hole) piece = contents_.read(file, path, part.offset + done, buffer_.data(), piece);
      if (piece == 0) throw failure("file " + quote(path) + " is shorter than its size says");
      for (std::size_t written = 0; written < piece;) {
        const la_ssize_t taken = archive_write_data(archive_.get(), buffer_.data() + written, piece - written);
        if (taken <= 0) check(ARCHIVE_FATAL);
        written += static_cast<std::size_t>(taken);
      }
      done += piece;
    }
  }

  MergedTree tree_;
  Contents contents_;
  Output output_;
  std::unique_ptr<archive, decltype(&archive_write_free)> archive_;
  std::set<std::string> implicit_;  ///< parents that an archive need not have
  std::string step_;
  std::uint64_t total_;
  Progress& progress_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::string> links_;
  std::string buffer_;
};

}  // namespace

std::uint64_t export_layer(engine::LayerStore& store, const engine::StoredLayer& layer, int fd, Progress& progress) {
  return attempt("cannot export layer " + quote(layer.manifest.name.str()),
                 [&] { return Export(store, layer, fd, progress).run(); });
}

}  // namespace dsec::layers
