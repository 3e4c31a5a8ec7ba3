#include "layers/compose/foreign_check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/erofs_read/erofs_image.h"

namespace dsec::layers {
namespace {

namespace fs = std::filesystem;

// Beside mkfs.erofs, wherever that is; empty when this host has none.
std::optional<fs::path> find_fsck() {
  std::vector<fs::path> folders;
  if (const char* mkfs = std::getenv("DSEC_MKFS_EROFS"); mkfs && *mkfs) folders.push_back(fs::path(mkfs).parent_path());
  std::error_code error;
  folders.push_back(fs::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "libexec/dsec");
  const char* path = std::getenv("PATH");
  std::istringstream words(path ? path : "/usr/sbin:/usr/bin:/sbin:/bin");
  for (std::string folder; std::getline(words, folder, ':');) folders.push_back(folder);
  for (const fs::path& folder : folders)
    if (const fs::path program = folder / "fsck.erofs"; ::access(program.c_str(), X_OK) == 0) return program;
  return std::nullopt;
}

void run_fsck(const fs::path& program, const fs::path& meta, const std::optional<fs::path>& data) {
  SpawnOptions options{.argv = {program.native(), "-d1"}};
  if (data) options.argv.push_back("--device=" + data->native());
  options.argv.push_back(meta.native());
  const CommandResult result = run_command(options);
  if (result.status.ok()) return;
  const std::string& said = result.err.empty() ? result.out : result.err;
  throw failure("fsck.erofs refuses it (" + result.status.str() + "): " + quote(said.substr(0, said.find('\n'))));
}

bool allowed_xattr(const std::string& name, const std::string& value) {
  if (name == "trusted.overlay.opaque") return value == "y";
  if (name == "trusted.overlay.origin") return value.empty();
  if (name == "security.capability" || name == "system.posix_acl_access" || name == "system.posix_acl_default")
    return true;
  return name.starts_with("user.") && !name.starts_with("user.overlay.");
}

void check_inode(ErofsImage& image, const std::string& path, const ErofsInode& inode) {
  const Entry entry = to_entry(image, path, inode);
  // Devices are let through: every Debian base has them, and each mount of a layer or of a stack is nodev.
  for (const auto& [name, value] : entry.xattrs)
    if (!allowed_xattr(name, value)) throw failure("it has the xattr " + quote(name) + " at " + quote(path));
  // The contents of compressed files are fsck.erofs's matter.
  if (inode.is_file() && !inode.compressed())
    attempt("file " + quote(path), [&] { image.extents(inode, [](const ErofsExtent&) {}); });
}

void check_image(engine::LayerStore& store, const LayerImage& manifest, const std::optional<fs::path>& fsck) {
  const Blob& meta = manifest.blob(BlobRole::Meta);
  const fs::path meta_path = store.blob_path(meta.digest);
  const Blob* const data = manifest.find(BlobRole::Data);

  ErofsImage image(open_file(meta_path, O_RDONLY), UniqueFd(), meta.digest.brief());
  if (image.meta_size() != meta.size) throw failure("its metadata has another size than the manifest says");
  const auto device = image.data_device_size();
  if (device.value_or(0) > (data ? data->size : 0)) throw failure("it refers to more data than the manifest names");
  walk(image, [&](const std::string& path, const ErofsInode& inode) { check_inode(image, path, inode); });
  if (!fsck) return;
  if (!data) return run_fsck(*fsck, meta_path, {});
  if (store.has_blob(data->digest)) return run_fsck(*fsck, meta_path, store.blob_path(data->digest));
  // What is loaded on demand is not read for this: uncompressed contents have nothing that could be wrong with them,
  // and fsck.erofs looks at the size alone.
  const UniqueFd hollow(::memfd_create("data", 0));
  if (!hollow || ::ftruncate(hollow.get(), static_cast<off_t>(data->size)) != 0)
    throw system_error("make a file in memory");
  run_fsck(*fsck, meta_path, "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(hollow.get()));
}

}  // namespace

void check_foreign_layer(engine::LayerStore& store, const engine::StoredLayer& layer) {
  attempt("layer " + quote(layer.manifest.name.str()) + " is not from here and not safe to mount", [&] {
    const auto fsck = find_fsck();
    for (const LayerImage& image : layer.manifest.images) {
      if (image.compression != "none" && !fsck)
        throw failure("it is compressed, and only fsck.erofs can check that").hint("install erofs-utils");
      check_image(store, image, fsck);
    }
    store.mark_trusted(layer.digest);
  });
}

}  // namespace dsec::layers
