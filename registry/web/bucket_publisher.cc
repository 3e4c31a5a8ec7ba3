#include "registry/web/bucket_publisher.h"

#include <fcntl.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/blob_download.h"
#include "registry/layout/catalog.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace {

using Existing = S3Place::Existing;

class BucketPublisher : public Publisher {
 public:
  BucketPublisher(const S3Place& place, LocalStore& store) : place_(place), store_(store) {}

  bool has_blob(const Blob& blob) override {
    const auto size = place_.size(blob_name(blob.digest));
    if (size && *size != blob.size)
      throw damaged(blob, "it has " + std::to_string(*size) + " bytes instead of " + std::to_string(blob.size));
    return size.has_value();
  }

  void verify_blob(const Blob& blob) override {
    const Digest found = download_blob(
        blob, [](std::string_view) {}, [](std::uint64_t) {},
        [&](http::Download& download) { return place_.read(blob_name(blob.digest), download); });
    if (found != blob.digest) throw damaged(blob, "its bytes have " + found.str());
  }

  bool put_blob(const Blob& blob, const std::function<void(std::uint64_t)>& advance) override {
    const UniqueFd source = open_file(store_.blob_path(blob.digest), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return place_.put(blob_name(blob.digest), {{}, source.get(), blob.size, blob.digest}, Existing::Keep, advance);
  }

  void put_manifest(const LayerManifest& manifest) override {
    const std::string text = manifest.canonical(), name = manifest_name(manifest.digest());
    if (!place_.has_file(name)) place_.put(name, {text, -1, text.size(), {}}, Existing::Keep, {});
    read_manifest(place_, manifest.digest());  // a damaged one is told, not trusted
  }

  void put_tag(const LayerName& layer, const std::string& tag, const LayerManifest& manifest) override {
    const std::string name = tag_name(layer, tag), text = manifest.digest().str() + "\n";
    if (place_.read_file(name, kLargestTag) != text)
      place_.put(name, {text, -1, text.size(), {}}, Existing::Replace, {});
  }

 private:
  static Error damaged(const Blob& blob, const std::string& why) {
    return failure("the registry's blob " + blob.digest.brief() + " is damaged: " + why)
        .hint("remove the object " + blob_name(blob.digest) + " below the registry's prefix, then publish again");
  }

  const S3Place& place_;
  LocalStore& store_;
};

}  // namespace

std::unique_ptr<Publisher> publish_to_bucket(const S3Place& place, LocalStore& store) {
  return std::make_unique<BucketPublisher>(place, store);
}

}  // namespace dsec::registry
