#include "registry/oci/oci_registry.h"

#include <algorithm>

#include "core/base/digest_of_part.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/blob_download.h"
#include "registry/collect/condemned.h"
#include "registry/oci/access.h"
#include "registry/oci/artifact.h"
#include "registry/oci/indexed_blobs.h"
#include "registry/oci/oci_remover.h"
#include "registry/oci/reference.h"
#include "registry/oci/referrers.h"

namespace dsec::registry {
namespace {

using Advance = std::function<void(std::uint64_t)>;

// Of other registries of ours on the same host that may have a blob already.
constexpr std::size_t kMostMountSources = 4;

/// Where everything of one registry is: shared by its reader and its publishers.
struct Place {
  RegistryAddress address;
  OciClient& client;
  IndexedBlobs& indexed;  ///< of the shelf

  const std::string& shelf() const { return address.repository; }
  std::string repository(const LayerName& name) const {
    std::string path = address.repository + "/" + name.str();
    if (!valid_repository(path))
      throw usage_error(quote(path) + " is too long for the name of a repository").hint("a shorter path in the URL");
    return path;
  }
};

LayerManifest read_layer(const Place& place, const Digest& layer) {
  return attempt("cannot read the manifest of " + layer.str(), [&] {
    const auto text = place.client.blob(place.shelf(), layer);
    if (!text) throw failure("the registry does not have it");
    LayerManifest manifest = LayerManifest::parse(*text, layer.str());
    if (manifest.canonical() != *text) throw failure("it is not written in the canonical form");
    return manifest;
  });
}

ReadBlob reading(const Place& place, const Blob& blob) {
  return [&](http::Download& download) { return place.indexed.read(blob, download); };
}

class OciPublisher : public Publisher {
 public:
  OciPublisher(const Place& place, BlobContents& contents, std::set<Digest> announced,
               std::vector<std::string> mount_sources)
      : place_(place),
        contents_(contents),
        announced_(std::move(announced)),
        mount_sources_(std::move(mount_sources)) {}

  void begin(Progress&) override { pardon(OciNotes(place_.client, place_.shelf()), announced_); }

  bool has_blob(const Blob& blob) override {
    auto size = place_.client.blob_size(place_.shelf(), blob.digest);
    if (!size && blob.role == BlobRole::Data) size = indexed_size(blob);
    if (size && *size != blob.size)
      throw failure("the registry's blob " + blob.digest.brief() + " is damaged: it has " + std::to_string(*size) +
                    " bytes instead of " + std::to_string(blob.size))
          .hint("remove it from the registry with the registry's own means, then publish again");
    return size.has_value();
  }

  void verify_blob(const Blob& blob) override {
    const Digest found = download_blob(
        blob, [](std::string_view) {}, [](std::uint64_t) {}, reading(place_, blob));
    if (found != blob.digest)
      throw failure("the registry's blob " + blob.digest.brief() + " is damaged: its bytes have " + found.str())
          .hint("remove it from the registry with the registry's own means, then publish again");
  }

  bool put_blob(const Blob& blob, const Advance& advance) override {
    for (const std::string& source : mount_sources_)
      if (place_.client.mount_blob(place_.shelf(), blob.digest, source)) return false;
    push(place_.shelf(), blob, advance);
    return true;
  }

  void put_manifest(const LayerManifest& manifest) override {
    put_on_shelf(place_.client, place_.shelf(), manifest);
    published_.push_back(manifest);
  }

  void put_tag(const LayerName& name, const std::string& tag, const LayerManifest& manifest) override {
    const std::string repository = place_.repository(name);
    const std::set<Digest> indexed = indexed_blobs(place_.client, place_.shelf(), manifest);
    const std::string artifact = artifact_manifest(manifest, indexed);
    if (place_.client.manifest_digest(repository, tag) == Digest::of(artifact)) return;
    for (const LayerImage& image : manifest.images)
      for (const Blob& blob : image.blobs)
        if (!indexed.contains(blob.digest) && !place_.client.blob_size(repository, blob.digest) &&
            !place_.client.mount_blob(repository, blob.digest, place_.shelf()))
          push(repository, blob, [](std::uint64_t) {});
    put_artifact(place_.client, repository, tag, manifest, indexed);
  }

  // A gc that had not seen the tags yet may have removed what lay there before; one that sees them puts it back.
  void finish() override {
    for (const LayerManifest& manifest : published_) put_on_shelf(place_.client, place_.shelf(), manifest);
  }

  void put_prefetch_list(const LayerManifest& manifest, const std::string& text) override {
    for (const std::string& content : {std::string(kEmptyConfig), text})
      if (const Digest digest = Digest::of(content); !place_.client.blob_size(place_.shelf(), digest))
        place_.client.push_blob(place_.shelf(), digest, {content, -1, content.size()}, [](std::uint64_t) {});
    push_referrer(place_.client, place_.shelf(), prefetch_tag(manifest.digest()),
                  prefetch_artifact(manifest, text, indexed_blobs(place_.client, place_.shelf(), manifest)));
  }

 private:
  // One that is of no use is as if there was none: then the blob itself is copied.
  std::optional<std::uint64_t> indexed_size(const Blob& blob) {
    try {
      const auto size = place_.indexed.size(blob.digest);
      return size == blob.size ? size : std::nullopt;
    } catch (const BadIndex&) {
      return std::nullopt;
    }
  }

  void push(const std::string& repository, const Blob& blob, const Advance& advance) {
    const UniqueFd source = contents_.open(blob);
    try {
      place_.client.push_blob(repository, blob.digest, {{}, source.get(), blob.size}, advance);
    } catch (const Error&) {
      // The registry refuses what has another digest; whose bytes are wrong is seen here.
      if (const Digest found = digest_of_part(source.get(), blob.size); found != blob.digest)
        throw contents_.damaged(found);
      throw;
    }
  }

  const Place& place_;
  BlobContents& contents_;
  const std::set<Digest> announced_;
  const std::vector<std::string> mount_sources_;
  std::vector<LayerManifest> published_;
};

class OciRegistry : public Registry {
 public:
  OciRegistry(const RegistryAddress& address, const Config& config, http::ClientOptions options,
              std::chrono::milliseconds patience)
      : access_(config, std::move(options), CredentialStore::usual_files()),
        indexed_(access_.at(address.host), address.repository, patience),
        place_{address, access_.at(address.host), indexed_},
        patience_(patience) {
    for (const RegistryEntry& entry : config.registries) {
      if (!entry.url.starts_with("oci://") || mount_sources_.size() == kMostMountSources) continue;
      const RegistryAddress other = RegistryAddress::of(entry);
      if (other.host == address.host && other.repository != address.repository)
        mount_sources_.push_back(other.repository);
    }
    attempt("cannot use registry " + address.shown(), [&] { place_.client.ping(); });
  }

  const RegistryAddress& address() const override { return place_.address; }

  std::optional<Digest> resolve(const LayerRef& ref) override {
    if (!ref.digest_prefix) return tag(*ref.name, ref.tag.value_or("latest"));
    const std::string& prefix = *ref.digest_prefix;
    if (prefix.size() == 64) {
      const Digest digest = Digest::parse(prefix);
      if (!place_.client.manifest_digest(place_.shelf(), shelf_tag(digest))) return std::nullopt;
      return digest;
    }
    std::vector<Digest> found;
    for (const Digest& digest : layers()) {
      if (!digest.hex().starts_with(prefix)) continue;
      if (ref.name && manifest(digest).name != *ref.name) continue;
      found.push_back(digest);
    }
    return only_layer(ref, found);
  }

  LayerManifest manifest(const Digest& layer) override { return read_layer(place_, layer); }

  std::optional<std::string> prefetch_list(const Digest& layer) override {
    const auto document = place_.client.manifest(place_.shelf(), prefetch_tag(layer));
    if (!document) return std::nullopt;
    const auto list = list_of_artifact(document->bytes, "the manifest of the prefetch list of " + layer.str());
    return list ? place_.client.blob(place_.shelf(), *list) : std::nullopt;
  }

  std::optional<Digest> tag(const LayerName& name, const std::string& tag) override {
    const std::string repository = place_.repository(name), what = name.str() + ":" + tag;
    const auto document = place_.client.manifest(repository, tag);
    if (!document) return std::nullopt;
    const auto layer = layer_of_artifact(document->bytes, "the manifest of " + what);
    if (!layer)
      throw usage_error(quote(what) + " of registry " + address().shown() + " is no layer of dsec")
          .hint("an image becomes one by dsec import " + what + " docker://" + address().host + "/" + repository + ":" +
                tag);
    return layer;
  }

  std::vector<CatalogTag> tags(const std::optional<LayerName>& name) override {
    std::vector<LayerName> names;
    if (name)
      names.push_back(*name);
    else
      names = layer_names(place_.client, place_.shelf());
    std::vector<CatalogTag> tags;
    for (const LayerName& each : names)
      for (const std::string& tag : place_.client.tags(place_.repository(each)))
        if (valid_tag(tag)) tags.push_back({each, tag});
    std::sort(tags.begin(), tags.end(), [](const auto& a, const auto& b) { return a.str() < b.str(); });
    return tags;
  }

  std::vector<Digest> layers() override { return shelved_layers(place_.client, place_.shelf()); }
  std::optional<std::uint64_t> blob_size(const Digest& blob) override {
    const auto size = place_.client.blob_size(place_.shelf(), blob);
    return size ? size : indexed_.size(blob);
  }

  Digest copy_blob(const Blob& blob, int to, const Advance& advance) override {
    return download_blob(
        blob, [&](std::string_view piece) { write_all(to, piece); }, advance, reading(place_, blob));
  }

  void read_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes) override {
    download_range(blob, offset, bytes, reading(place_, blob), patience_);
  }

  void distrust() override { indexed_.forget(); }

  std::optional<std::filesystem::path> in_place(const Blob&) override { return std::nullopt; }

  std::unique_ptr<Publisher> publisher(BlobContents& contents, const std::string&,
                                       std::set<Digest> announced) override {
    return std::make_unique<OciPublisher>(place_, contents, std::move(announced), mount_sources_);
  }
  std::unique_ptr<Remover> remover() override { return std::make_unique<OciRemover>(place_.client, place_.shelf()); }

 private:
  OciAccess access_;
  IndexedBlobs indexed_;
  const Place place_;
  const std::chrono::milliseconds patience_;
  std::vector<std::string> mount_sources_;
};

}  // namespace

std::unique_ptr<Registry> open_oci_registry(const RegistryAddress& address, Progress& progress,
                                            const std::optional<Patience>& patience) {
  http::ClientOptions options;
  options.notice = [&progress](const std::string& message) { progress.warn(message); };
  if (patience) limit(options, *patience);
  return std::make_unique<OciRegistry>(address, Config::load(), std::move(options), whole_of(patience));
}

void ping_oci_registry(const RegistryAddress& address) {
  http::ClientOptions options;
  options.connect_timeout = options.stall_timeout = std::chrono::seconds(5);
  options.retry.tries = 1;
  OciAccess access(Config::load(), std::move(options), CredentialStore::usual_files());
  access.at(address.host).ping();
}

}  // namespace dsec::registry
