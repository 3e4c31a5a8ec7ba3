#include "registry/web/web_registry.h"

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/blob_download.h"
#include "registry/layout/catalog.h"
#include "registry/layout/layout.h"
#include "registry/layout/prefetch_list.h"
#include "registry/web/bucket_notes.h"
#include "registry/web/bucket_publisher.h"
#include "registry/web/place.h"
#include "registry/web/s3_place.h"

namespace dsec::registry {
namespace {

class BucketRemover : public Remover {
 public:
  BucketRemover(const S3Place& place, Registry& registry) : place_(place), notes_(place), registry_(registry) {}

  const Notes& notes() const override { return notes_; }
  std::set<Digest> tagged() override { return tagged_layers(registry_); }
  std::vector<Digest> blobs() override { return list_blobs(place_); }
  void remove_layer(const LayerManifest& layer) override {
    place_.remove(prefetch_name(layer.digest()));
    place_.remove(manifest_name(layer.digest()));
  }
  void remove_blob(const Digest& blob) override { place_.remove(blob_name(blob)); }

 private:
  const S3Place& place_;
  const BucketNotes notes_;
  Registry& registry_;
};

Error read_only(const RegistryAddress& address) {
  return usage_error("registry " + address.shown() + " is behind a web server: it can be read, not published to")
      .hint("--to file:///PATH, on a host that has the directory which the server shows")
      .hint("--to s3://BUCKET/PREFIX or oci://HOST/REPOSITORY, which can be published to over the network");
}

class WebRegistry : public Registry {
 public:
  WebRegistry(RegistryAddress address, std::unique_ptr<ObjectPlace> place, std::chrono::milliseconds patience)
      : address_(std::move(address)), place_(std::move(place)), patience_(patience) {}

  const RegistryAddress& address() const override { return address_; }
  std::optional<Digest> resolve(const LayerRef& ref) override { return registry::resolve(*place_, ref); }
  LayerManifest manifest(const Digest& layer) override { return read_manifest(*place_, layer); }
  std::optional<std::string> prefetch_list(const Digest& layer) override {
    return place_->read_file(prefetch_name(layer), kLargestPrefetchList);
  }
  std::optional<Digest> tag(const LayerName& name, const std::string& tag) override {
    return read_tag(*place_, name, tag, NamedFiles::Missing::Possible);
  }
  std::vector<CatalogTag> tags(const std::optional<LayerName>& name) override { return list_tags(*place_, name); }
  std::vector<Digest> layers() override { return list_layers(*place_); }
  std::optional<std::uint64_t> blob_size(const Digest& blob) override { return place_->size(blob_name(blob)); }

  Digest copy_blob(const Blob& blob, int to, const std::function<void(std::uint64_t)>& advance) override {
    return download_blob(
        blob, [&](std::string_view piece) { write_all(to, piece); }, advance, reading(blob));
  }

  void read_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes) override {
    download_range(blob, offset, bytes, reading(blob), patience_);
  }

  std::optional<std::filesystem::path> in_place(const Blob&) override { return std::nullopt; }

  std::unique_ptr<Publisher> publisher(BlobContents& contents, const std::string& host_id,
                                       std::set<Digest> announced) override {
    if (const auto* bucket = dynamic_cast<const S3Place*>(place_.get()))
      return publish_to_bucket(*bucket, contents, host_id, std::move(announced));
    throw read_only(address_);
  }

  std::unique_ptr<Remover> remover() override {
    if (const auto* bucket = dynamic_cast<const S3Place*>(place_.get()))
      return std::make_unique<BucketRemover>(*bucket, *this);
    throw usage_error("registry " + address_.shown() + " is behind a web server: it can be read, nothing else")
        .hint("dsec registry gc file:///PATH, on a host that has the directory which the server shows");
  }

 private:
  ReadBlob reading(const Blob& blob) const {
    return [this, &blob](http::Download& download) { return place_->read(blob_name(blob.digest), download); };
  }

  const RegistryAddress address_;
  const std::unique_ptr<ObjectPlace> place_;
  const std::chrono::milliseconds patience_;
};

}  // namespace

std::unique_ptr<Registry> open_web_registry(const RegistryAddress& address, OpenMode mode, Progress& progress,
                                            const std::optional<Patience>& patience) {
  if (mode == OpenMode::Write && address.kind == RegistryAddress::Kind::Http) throw read_only(address);
  return attempt("cannot use registry " + address.shown(), [&] {
    return std::make_unique<WebRegistry>(address, open_place(address, mode, progress, patience), whole_of(patience));
  });
}

}  // namespace dsec::registry
