#include "registry/oci/oci_registry.h"

#include <fcntl.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/blob_download.h"
#include "registry/oci/access.h"
#include "registry/oci/artifact.h"
#include "registry/oci/reference.h"

namespace dsec::registry {
namespace {

using Advance = std::function<void(std::uint64_t)>;

// Of other registries of ours on the same host that may have a blob already.
constexpr std::size_t kMostMountSources = 4;

/// Where everything of one registry is: shared by its reader and its publishers.
struct Place {
  RegistryAddress address;
  OciClient& client;

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
  return [&](http::Download& download) { return place.client.read_blob(place.shelf(), blob.digest, download); };
}

class OciPublisher : public Publisher {
 public:
  OciPublisher(const Place& place, LocalStore& store, std::vector<std::string> mount_sources)
      : place_(place), store_(store), mount_sources_(std::move(mount_sources)) {}

  bool has_blob(const Blob& blob) override {
    const auto size = place_.client.blob_size(place_.shelf(), blob.digest);
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
    put_artifact(place_.shelf(), shelf_tag(manifest.digest()), manifest);
  }

  void put_tag(const LayerName& name, const std::string& tag, const LayerManifest& manifest) override {
    const std::string repository = place_.repository(name);
    const std::string artifact = artifact_manifest(manifest);
    if (place_.client.manifest_digest(repository, tag) == Digest::of(artifact)) return;
    for (const LayerImage& image : manifest.images)
      for (const Blob& blob : image.blobs)
        if (!place_.client.blob_size(repository, blob.digest) &&
            !place_.client.mount_blob(repository, blob.digest, place_.shelf()))
          push(repository, blob, [](std::uint64_t) {});
    put_artifact(repository, tag, manifest);
  }

 private:
  void push(const std::string& repository, const Blob& blob, const Advance& advance) {
    const UniqueFd source = open_file(store_.blob_path(blob.digest), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    try {
      place_.client.push_blob(repository, blob.digest, {{}, source.get(), blob.size}, advance);
    } catch (const Error&) {
      // The registry refuses what has another digest; whose bytes are wrong is seen here.
      if (const Digest found = digest_of_fd(source.get()); found != blob.digest)
        throw failure("the store's copy is damaged: its bytes have " + found.str())
            .hint("dsec layer verify, then import or pull the layer again");
      throw;
    }
  }

  void put_artifact(const std::string& repository, const std::string& tag, const LayerManifest& manifest) {
    const std::string artifact = artifact_manifest(manifest), config = manifest.canonical();
    if (place_.client.manifest_digest(repository, tag) == Digest::of(artifact)) return;
    if (const Digest layer = Digest::of(config); !place_.client.blob_size(repository, layer))
      place_.client.push_blob(repository, layer, {config, -1, config.size()}, [](std::uint64_t) {});
    place_.client.push_manifest(repository, tag, kImageManifestType, artifact);
  }

  const Place& place_;
  LocalStore& store_;
  const std::vector<std::string> mount_sources_;
};

class OciRegistry : public Registry {
 public:
  OciRegistry(const RegistryAddress& address, const Config& config, http::ClientOptions options)
      : access_(config, std::move(options), CredentialStore::usual_files()), place_{address, access_.at(address.host)} {
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
    for (const std::string& tag : place_.client.tags(place_.shelf())) {
      const auto digest = layer_of_shelf_tag(tag);
      if (!digest || !digest->hex().starts_with(prefix)) continue;
      if (ref.name && manifest(*digest).name != *ref.name) continue;
      found.push_back(*digest);
    }
    return only_layer(ref, found);
  }

  LayerManifest manifest(const Digest& layer) override { return read_layer(place_, layer); }

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
      names = all_names();
    std::vector<CatalogTag> tags;
    for (const LayerName& each : names)
      for (const std::string& tag : place_.client.tags(place_.repository(each)))
        if (valid_tag(tag)) tags.push_back({each, tag});
    std::sort(tags.begin(), tags.end(), [](const auto& a, const auto& b) { return a.str() < b.str(); });
    return tags;
  }

  Digest copy_blob(const Blob& blob, int to, const Advance& advance) override {
    return download_blob(
        blob, [&](std::string_view piece) { write_all(to, piece); }, advance, reading(place_, blob));
  }

  void read_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes) override {
    download_range(blob, offset, bytes, reading(place_, blob));
  }

  std::optional<std::filesystem::path> in_place(const Blob&) override { return std::nullopt; }

  std::unique_ptr<Publisher> publisher(LocalStore& store, std::set<Digest>) override {
    return std::make_unique<OciPublisher>(place_, store, mount_sources_);
  }

 private:
  std::vector<LayerName> all_names() {
    const auto repositories = place_.client.repositories(place_.shelf());
    if (!repositories)
      throw failure("registry " + address().shown() + " keeps no catalogue that it shows us")
          .hint("name the layer: dsec registry tags URL KIND/NAME");
    std::vector<LayerName> names;
    for (const std::string& repository : *repositories) {
      try {
        names.push_back(LayerName::parse(repository.substr(place_.shelf().size() + 1)));
      } catch (const Error&) {
        // Somebody's images.
      }
    }
    return names;
  }

  OciAccess access_;
  const Place place_;
  std::vector<std::string> mount_sources_;
};

}  // namespace

std::unique_ptr<Registry> open_oci_registry(const RegistryAddress& address, Progress& progress,
                                            const std::optional<Patience>& patience) {
  http::ClientOptions options;
  options.notice = [&progress](const std::string& message) { progress.warn(message); };
  if (patience) limit(options, *patience);
  return std::make_unique<OciRegistry>(address, Config::load(), std::move(options));
}

void ping_oci_registry(const RegistryAddress& address) {
  http::ClientOptions options;
  options.connect_timeout = options.stall_timeout = std::chrono::seconds(5);
  options.retry.tries = 1;
  OciAccess access(Config::load(), std::move(options), CredentialStore::usual_files());
  access.at(address.host).ping();
}

}  // namespace dsec::registry
