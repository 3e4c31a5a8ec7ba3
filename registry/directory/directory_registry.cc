#include "registry/directory/directory_registry.h"

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/blob_download.h"
#include "registry/collect/condemned.h"
#include "registry/directory/catalogue_file.h"
#include "registry/directory/directory_notes.h"
#include "registry/directory/file_copy.h"
#include "registry/directory/new_file.h"
#include "registry/directory/three_fs_blobs.h"
#include "registry/layout/catalog.h"
#include "registry/layout/layout.h"
#include "registry/layout/prefetch_list.h"
#include "registry/layout/publisher_lease.h"

namespace dsec::registry {
namespace {

using Missing = RegistryRoot::Missing;

// Nothing gets its name before it was read back as it was written.
void flush_and_compare(NewFile& file, int directory, std::uint64_t size, const Digest& digest) {
  file.flush();
  if (const Digest stored = read_back(directory, file.name(), size); stored != digest)
    throw failure("what was written does not read back: its bytes have " + stored.str())
        .hint("look at the filesystem of the registry: it does not keep what it is given");
}

class DirectoryPublisher : public Publisher {
 public:
  DirectoryPublisher(const RegistryRoot& root, BlobContents& contents, const std::string& host_id,
                     std::set<Digest> announced)
      : root_(root),
        contents_(contents),
        announced_(std::move(announced)),
        notes_(root),
        lease_(notes_, host_id, announced_) {}

  void begin(Progress& progress) override {
    wait_for_removers(notes_, announced_, progress);
    pardon(notes_, announced_);
  }

  // Another size is no state that publishing leaves behind.
  bool has_blob(const Blob& blob) override {
    const auto found = root_.look(blob_name(blob.digest));
    if (!found) return false;
    if (S_ISREG(found->st_mode) && static_cast<std::uint64_t>(found->st_size) == blob.size) return true;
    throw damaged(blob, "it has " + std::to_string(found->st_size) + " bytes instead of " + std::to_string(blob.size));
  }

  void verify_blob(const Blob& blob) override {
    const UniqueFd file = root_.open_file(blob_name(blob.digest), Missing::Expected);
    if (!file) throw failure("the registry's blob " + blob.digest.brief() + " went away");
    if (const Digest found = hash_exactly(file.get(), blob.size); found != blob.digest)
      throw damaged(blob, "its bytes have " + found.str());
  }

  bool put_blob(const Blob& blob, const std::function<void(std::uint64_t)>& advance) override {
    const std::string name = blob_name(blob.digest);
    const UniqueFd parent = root_.make_parent(name);
    NewFile file(parent.get(), lease_.publisher());
    const Digest read = contents_.copy(blob, file.fd(), advance);
    if (read != blob.digest) throw contents_.damaged(read);
    flush_and_compare(file, parent.get(), blob.size, blob.digest);
    return file.name_once(last_part(name));
  }

  void put_manifest(const LayerManifest& manifest) override {
    const std::string text = manifest.canonical();
    const Digest digest = Digest::of(text);
    const std::string name = manifest_name(digest);
    lease_.require();
    if (!root_.look(name)) {
      const UniqueFd parent = root_.make_parent(name);
      NewFile file(parent.get(), lease_.publisher());
      write_all(file.fd(), text);
      flush_and_compare(file, parent.get(), text.size(), digest);
      file.name_once(last_part(name));
    }
    read_manifest(root_, digest);  // a damaged one is told, not trusted
  }

  void put_tag(const LayerName& layer, const std::string& tag, const LayerManifest& manifest) override {
    lease_.require();
    replace(tag_name(layer, tag), manifest.digest().str() + "\n");
  }

  void put_prefetch_list(const LayerManifest& manifest, const std::string& text) override {
    replace(prefetch_name(manifest.digest()), text);
  }

  void finish() override { write_catalogue(root_, lease_.publisher()); }

 private:
  void replace(const std::string& name, const std::string& text) {
    const UniqueFd parent = root_.make_parent(name);
    NewFile file(parent.get(), lease_.publisher());
    write_all(file.fd(), text);
    flush_and_compare(file, parent.get(), text.size(), Digest::of(text));
    file.replace(last_part(name));
  }

  static Error damaged(const Blob& blob, const std::string& why) {
    return failure("the registry's blob " + blob.digest.brief() + " is damaged: " + why)
        .hint("dsec registry check --repair, then publish again");
  }

  const RegistryRoot& root_;
  BlobContents& contents_;
  const std::set<Digest> announced_;
  const DirectoryNotes notes_;
  KeptLease lease_;
};

class DirectoryRemover : public Remover {
 public:
  DirectoryRemover(const RegistryRoot& root, Registry& registry) : root_(root), notes_(root), registry_(registry) {}

  const Notes& notes() const override { return notes_; }
  std::set<Digest> tagged() override { return tagged_layers(registry_); }
  std::vector<Digest> blobs() override { return list_blobs(root_); }
  void remove_layer(const LayerManifest& layer) override {
    root_.remove(prefetch_name(layer.digest()));
    root_.remove(manifest_name(layer.digest()));
  }
  void remove_blob(const Digest& blob) override { root_.remove(blob_name(blob)); }
  void finish(const std::string& author) override { write_catalogue(root_, author); }

 private:
  const RegistryRoot& root_;
  const DirectoryNotes notes_;
  Registry& registry_;
};

class DirectoryRegistry : public Registry {
 public:
  DirectoryRegistry(RegistryRoot root, std::chrono::milliseconds ring_patience, Progress& progress)
      : root_(std::move(root)) {
    if (address().kind == RegistryAddress::Kind::ThreeFs) three_fs_.emplace(root_, ring_patience, progress);
  }

  const RegistryAddress& address() const override { return root_.address(); }
  std::optional<Digest> resolve(const LayerRef& ref) override { return registry::resolve(root_, ref); }
  LayerManifest manifest(const Digest& layer) override { return read_manifest(root_, layer); }
  std::optional<std::string> prefetch_list(const Digest& layer) override {
    return root_.read_file(prefetch_name(layer), kLargestPrefetchList);
  }
  std::optional<Digest> tag(const LayerName& name, const std::string& tag) override {
    return read_tag(root_, name, tag, Missing::Possible);
  }
  std::vector<CatalogTag> tags(const std::optional<LayerName>& name) override { return list_tags(root_, name); }
  std::vector<Digest> layers() override { return list_layers(root_); }

  std::optional<std::uint64_t> blob_size(const Digest& blob) override {
    const auto found = root_.look(blob_name(blob));
    if (!found || !S_ISREG(found->st_mode)) return std::nullopt;
    return static_cast<std::uint64_t>(found->st_size);
  }

  Digest copy_blob(const Blob& blob, int to, const std::function<void(std::uint64_t)>& advance) override {
    if (three_fs_) return three_fs_->copy(blob, to, advance);
    const UniqueFd source = root_.open_file(blob_name(blob.digest), Missing::Expected);
    if (!source) throw missing_blob(blob);
    return copy_exactly(source.get(), to, blob.size, advance);
  }

  void read_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes) override {
    if (three_fs_) return three_fs_->read(blob, offset, bytes);
    const UniqueFd source = root_.open_file(blob_name(blob.digest), Missing::Expected);
    if (!source) throw missing_blob(blob);
    attempt("cannot read blob " + blob.digest.str() + " of the registry",
            [&] { read_exactly(source.get(), offset, bytes); });
  }

  void distrust() override {
    if (three_fs_) three_fs_->distrust();
  }

  std::optional<std::filesystem::path> in_place(const Blob& blob) override {
    if (blob.role != BlobRole::Data || !address().in_place) return std::nullopt;
    // Opened like any other, so that a symlink or device of that name is refused.
    const std::string name = blob_name(blob.digest);
    if (!root_.open_file(name, Missing::Expected)) throw missing_blob(blob);
    return root_.path(name);
  }

  UniqueFd open_file(const Blob& blob) override {
    UniqueFd file = root_.open_file(blob_name(blob.digest), Missing::Expected);
    if (!file) throw missing_blob(blob);
    return file;
  }

  std::unique_ptr<Publisher> publisher(BlobContents& contents, const std::string& host_id,
                                       std::set<Digest> announced) override {
    return std::make_unique<DirectoryPublisher>(root_, contents, host_id, std::move(announced));
  }
  std::unique_ptr<Remover> remover() override { return std::make_unique<DirectoryRemover>(root_, *this); }

 private:
  const RegistryRoot root_;
  std::optional<ThreeFsBlobs> three_fs_;
};

}  // namespace

std::unique_ptr<Registry> open_directory_registry(const RegistryAddress& address, OpenMode mode, Progress& progress,
                                                  std::chrono::milliseconds ring_patience) {
  return std::make_unique<DirectoryRegistry>(
      mode == OpenMode::Write ? RegistryRoot::open_or_create(address) : RegistryRoot::open(address), ring_patience,
      progress);
}

}  // namespace dsec::registry
