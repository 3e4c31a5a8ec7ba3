#include "registry/directory/directory_registry.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/directory/catalogue_file.h"
#include "registry/directory/file_copy.h"
#include "registry/directory/new_file.h"
#include "registry/directory/publisher_lease.h"
#include "registry/layout/catalog.h"
#include "registry/layout/layout.h"

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
  DirectoryPublisher(const RegistryRoot& root, LocalStore& store, std::set<Digest> blobs)
      : root_(root), store_(store), lease_(root, store.home().host_id(), std::move(blobs)) {}

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
    const UniqueFd source = open_file(store_.blob_path(blob.digest), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    const UniqueFd parent = root_.make_parent(name);
    NewFile file(parent.get(), lease_.publisher());
    const Digest read = copy_exactly(source.get(), file.fd(), blob.size, [&](std::uint64_t done) {
      advance(done);
      lease_.renew();
    });
    if (read != blob.digest)
      throw failure("the store's copy is damaged: its bytes have " + read.str())
          .hint("dsec layer verify, then import or pull the layer again");
    flush_and_compare(file, parent.get(), blob.size, blob.digest);
    return file.name_once(last_part(name));
  }

  void put_manifest(const LayerManifest& manifest) override {
    const std::string text = manifest.canonical();
    const Digest digest = Digest::of(text);
    const std::string name = manifest_name(digest);
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
    const std::string name = tag_name(layer, tag), text = manifest.digest().str() + "\n";
    const UniqueFd parent = root_.make_parent(name);
    NewFile file(parent.get(), lease_.publisher());
    write_all(file.fd(), text);
    flush_and_compare(file, parent.get(), text.size(), Digest::of(text));
    file.replace(last_part(name));
  }

  void finish() override { write_catalogue(root_, lease_.publisher()); }

 private:
  static Error damaged(const Blob& blob, const std::string& why) {
    return failure("the registry's blob " + blob.digest.brief() + " is damaged: " + why)
        .hint("dsec registry check --repair, then publish again");
  }

  const RegistryRoot& root_;
  LocalStore& store_;
  PublisherLease lease_;
};

class DirectoryRegistry : public Registry {
 public:
  explicit DirectoryRegistry(RegistryRoot root) : root_(std::move(root)) {}

  const RegistryAddress& address() const override { return root_.address(); }
  std::optional<Digest> resolve(const LayerRef& ref) override { return registry::resolve(root_, ref); }
  LayerManifest manifest(const Digest& layer) override { return read_manifest(root_, layer); }
  std::optional<Digest> tag(const LayerName& name, const std::string& tag) override {
    return read_tag(root_, name, tag, Missing::Possible);
  }
  std::vector<CatalogTag> tags(const std::optional<LayerName>& name) override { return list_tags(root_, name); }

  Digest copy_blob(const Blob& blob, int to, const std::function<void(std::uint64_t)>& advance) override {
    const UniqueFd source = root_.open_file(blob_name(blob.digest), Missing::Expected);
    if (!source) throw missing(blob);
    return copy_exactly(source.get(), to, blob.size, advance);
  }

  void read_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes) override {
    const UniqueFd source = root_.open_file(blob_name(blob.digest), Missing::Expected);
    if (!source) throw missing(blob);
    attempt("cannot read blob " + blob.digest.str() + " of the registry",
            [&] { read_exactly(source.get(), offset, bytes); });
  }

  std::optional<std::filesystem::path> in_place(const Blob& blob) override {
    if (blob.role != BlobRole::Data || !address().in_place) return std::nullopt;
    // Opened like any other, so that a symlink or device of that name is refused.
    const std::string name = blob_name(blob.digest);
    if (!root_.open_file(name, Missing::Expected)) throw missing(blob);
    return root_.path(name);
  }

  std::unique_ptr<Publisher> publisher(LocalStore& store, std::set<Digest> blobs) override {
    return std::make_unique<DirectoryPublisher>(root_, store, std::move(blobs));
  }

 private:
  static Error missing(const Blob& blob) {
    return failure("the registry does not have blob " + blob.digest.str())
        .hint("publish the layer again from a host that has it");
  }

  RegistryRoot root_;
};

}  // namespace

std::unique_ptr<Registry> open_directory_registry(const RegistryAddress& address, OpenMode mode) {
  return std::make_unique<DirectoryRegistry>(mode == OpenMode::Write ? RegistryRoot::open_or_create(address)
                                                                     : RegistryRoot::open(address));
}

}  // namespace dsec::registry
