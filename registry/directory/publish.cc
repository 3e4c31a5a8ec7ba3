#include "registry/directory/publish.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/directory/catalog.h"
#include "registry/directory/file_copy.h"
#include "registry/directory/layout.h"
#include "registry/directory/new_file.h"
#include "registry/directory/publisher_lease.h"

namespace dsec::registry {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
}

std::string rate(std::uint64_t bytes, std::chrono::milliseconds duration) {
  const auto ms = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 1));
  return format_size(bytes) + " in " + format_duration(duration) + ", " + format_size(bytes * 1000 / ms) + "/s";
}

std::map<Digest, std::uint64_t> blobs_of(const LayerManifest& manifest) {
  std::map<Digest, std::uint64_t> blobs;
  for (const LayerImage& image : manifest.images)
    for (const Blob& blob : image.blobs) blobs.emplace(blob.digest, blob.size);
  return blobs;
}

// Nothing gets its name before it was read back as it was written.
void flush_and_compare(NewFile& file, int directory, std::uint64_t size, const Digest& digest) {
  file.flush();
  if (const Digest stored = read_back(directory, file.name(), size); stored != digest)
    throw failure("what was written does not read back: its bytes have " + stored.str())
        .hint("look at the filesystem of the registry: it does not keep what it is given");
}

class Publication {
 public:
  Publication(LocalStore& store, const RegistryRoot& root, const PublishOptions& options, Progress& progress)
      : store_(store), root_(root), options_(options), progress_(progress), session_(store.begin_session()) {}

  /// Holds all layers in the store and announces their blobs in the registry, before anything is looked at.
  void prepare(std::span<const LayerRef> refs) {
    std::set<Digest> blobs;
    const auto add = [&](const LayerRef& ref, const engine::StoredLayer& layer) {
      for (const auto& [digest, size] : blobs_of(layer.manifest)) {
        session_->hold(digest);
        blobs.insert(digest);
      }
      layers_.push_back({ref, layer});
    };
    const auto announced = [&](const Digest& digest) {
      return std::any_of(layers_.begin(), layers_.end(),
                         [&](const Wanted& wanted) { return wanted.layer.digest == digest; });
    };
    for (const LayerRef& ref : refs) {
      const engine::StoredLayer layer = store_.get(ref);
      // What a snapshot stands on first, so that nobody finds it without; under no tag.
      for (const Digest& lower : layer.manifest.lowers)
        if (!announced(lower)) add(LayerRef::of(lower), store_.get(LayerRef::of(lower)));
      add(ref, layer);
    }
    lease_ = std::make_unique<PublisherLease>(root_, store_.home().host_id(), std::move(blobs));
  }

  PublishResult run() {
    const auto start = Clock::now();
    for (const Wanted& wanted : layers_)
      attempt("cannot publish " + wanted.ref.str() + " to " + root_.address().shown(),
              [&] { publish_layer(wanted.ref, wanted.layer); });
    result_.duration = since(start);
    return std::move(result_);
  }

 private:
  void publish_layer(const LayerRef& ref, const engine::StoredLayer& layer) {
    const std::string step = "publish " + ref.str();
    const auto start = Clock::now();
    PublishedLayer published{ref.str(), layer.digest, layer.manifest.total_size(), 0};
    progress_.begin(step);
    std::uint64_t done = 0;
    const auto blobs = blobs_of(layer.manifest);
    for (const auto& [digest, size] : blobs) {
      const bool copied = put_blob(digest, size, [&](std::uint64_t part) {
        progress_.advance(step, done + part, published.bytes);
        lease_->renew();
      });
      (copied ? published.bytes_copied : result_.bytes_present) += size;
      done += size;
      progress_.advance(step, done, published.bytes);
    }
    // Somebody's repair may have removed a blob between our looking and its seeing our lease.
    for (const auto& [digest, size] : blobs)
      if (!has_blob(digest, size)) put_blob(digest, size, [&](std::uint64_t) { lease_->renew(); });
    put_manifest(layer);
    if (ref.tag) put_tag(*ref.name, *ref.tag, layer.digest);
    result_.bytes_copied += published.bytes_copied;
    progress_.end(step, published.bytes_copied ? rate(published.bytes_copied, since(start)) : "was there already");
    result_.layers.push_back(std::move(published));
  }

  // Whether the registry has a file of that name and size. Another size is no state that publishing leaves behind.
  bool has_blob(const Digest& digest, std::uint64_t size) const {
    const auto found = root_.look(blob_name(digest));
    if (!found) return false;
    if (S_ISREG(found->st_mode) && static_cast<std::uint64_t>(found->st_size) == size) return true;
    throw failure("the registry's blob " + digest.brief() + " is damaged: it has " + std::to_string(found->st_size) +
                  " bytes instead of " + std::to_string(size))
        .hint("dsec registry check --repair, then publish again");
  }

  void verify_blob(const Digest& digest, std::uint64_t size) const {
    const UniqueFd file = root_.open_file(blob_name(digest), RegistryRoot::Missing::Expected);
    if (!file) throw failure("the registry's blob " + digest.brief() + " went away");
    if (const Digest found = hash_exactly(file.get(), size); found != digest)
      throw failure("the registry's blob " + digest.brief() + " is damaged: its bytes have " + found.str())
          .hint("dsec registry check --repair, then publish again");
  }

  // False when it was there.
  bool put_blob(const Digest& digest, std::uint64_t size, const std::function<void(std::uint64_t)>& advance) {
    if (has_blob(digest, size)) {
      if (options_.verify_existing) verify_blob(digest, size);
      return false;
    }
    return attempt("cannot copy blob " + digest.brief(), [&] {
      const std::string name = blob_name(digest);
      const UniqueFd source = open_file(store_.blob_path(digest), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
      const UniqueFd parent = root_.make_parent(name);
      NewFile file(parent.get(), lease_->publisher());
      if (const Digest read = copy_exactly(source.get(), file.fd(), size, advance); read != digest)
        throw failure("the store's copy is damaged: its bytes have " + read.str())
            .hint("dsec layer verify, then import or pull the layer again");
      flush_and_compare(file, parent.get(), size, digest);
      return file.name_once(last_part(name));
    });
  }

  void put_manifest(const engine::StoredLayer& layer) {
    attempt("cannot write the manifest", [&] {
      const std::string name = manifest_name(layer.digest), text = layer.manifest.canonical();
      if (root_.look(name)) {
        read_manifest(root_, layer.digest);  // a damaged one is told, not trusted
        return;
      }
      const UniqueFd parent = root_.make_parent(name);
      NewFile file(parent.get(), lease_->publisher());
      write_all(file.fd(), text);
      flush_and_compare(file, parent.get(), text.size(), layer.digest);
      file.name_once(last_part(name));
      read_manifest(root_, layer.digest);
    });
  }

  void put_tag(const LayerName& layer, const std::string& tag, const Digest& digest) {
    attempt("cannot write the tag", [&] {
      const std::string name = tag_name(layer, tag), text = digest.str() + "\n";
      const UniqueFd parent = root_.make_parent(name);
      NewFile file(parent.get(), lease_->publisher());
      write_all(file.fd(), text);
      flush_and_compare(file, parent.get(), text.size(), Digest::of(text));
      file.replace(last_part(name));
    });
  }

  LocalStore& store_;
  const RegistryRoot& root_;
  const PublishOptions& options_;
  Progress& progress_;
  std::unique_ptr<engine::BlobSession> session_;
  std::unique_ptr<PublisherLease> lease_;
  struct Wanted {
    LayerRef ref;
    engine::StoredLayer layer;
  };
  std::vector<Wanted> layers_;
  PublishResult result_;
};

}  // namespace

PublishResult publish(LocalStore& store, std::span<const LayerRef> refs, const RegistryAddress& address,
                      const PublishOptions& options, Progress& progress) {
  for (const LayerRef& ref : refs) store.get(ref);  // before a registry is made for a name that is wrong
  const RegistryRoot root = RegistryRoot::open_or_create(address);
  Publication publication(store, root, options, progress);
  publication.prepare(refs);
  return publication.run();
}

}  // namespace dsec::registry
