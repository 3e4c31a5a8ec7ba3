#include "registry/web/bucket_publisher.h"

#include "core/base/error.h"
#include "registry/blob_download.h"
#include "registry/collect/condemned.h"
#include "registry/layout/catalog.h"
#include "registry/layout/layout.h"
#include "registry/layout/publisher_lease.h"
#include "registry/web/bucket_notes.h"

namespace dsec::registry {
namespace {

using Existing = S3Place::Existing;

class BucketPublisher : public Publisher {
 public:
  BucketPublisher(const S3Place& place, BlobContents& contents, const std::string& host_id, std::set<Digest> announced)
      : place_(place),
        contents_(contents),
        announced_(std::move(announced)),
        notes_(place),
        lease_(notes_, host_id, announced_) {}

  void begin(Progress& progress) override {
    wait_for_removers(notes_, announced_, progress);
    pardon(notes_, announced_);
  }

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
    const UniqueFd source = contents_.open(blob);
    return place_.put(
        blob_name(blob.digest),
        {{}, source.get(), blob.size, blob.digest, [&](const Digest& found) { return contents_.damaged(found); }},
        Existing::Keep, advance);
  }

  void put_manifest(const LayerManifest& manifest) override {
    const std::string text = manifest.canonical(), name = manifest_name(manifest.digest());
    lease_.require();
    if (!place_.has_file(name)) place_.put(name, {text, -1, text.size(), {}}, Existing::Keep, {});
    read_manifest(place_, manifest.digest());  // a damaged one is told, not trusted
  }

  void put_tag(const LayerName& layer, const std::string& tag, const LayerManifest& manifest) override {
    const std::string name = tag_name(layer, tag), text = manifest.digest().str() + "\n";
    lease_.require();
    if (place_.read_file(name, kLargestTag) != text)
      place_.put(name, {text, -1, text.size(), {}}, Existing::Replace, {});
  }

  void put_prefetch_list(const LayerManifest& manifest, const std::string& text) override {
    place_.put(prefetch_name(manifest.digest()), {text, -1, text.size(), {}}, Existing::Replace, {});
  }

 private:
  static Error damaged(const Blob& blob, const std::string& why) {
    return failure("the registry's blob " + blob.digest.brief() + " is damaged: " + why)
        .hint("remove the object " + blob_name(blob.digest) + " below the registry's prefix, then publish again");
  }

  const S3Place& place_;
  BlobContents& contents_;
  const std::set<Digest> announced_;
  const BucketNotes notes_;
  KeptLease lease_;
};

}  // namespace

std::unique_ptr<Publisher> publish_to_bucket(const S3Place& place, BlobContents& contents, const std::string& host_id,
                                             std::set<Digest> announced) {
  return std::make_unique<BucketPublisher>(place, contents, host_id, std::move(announced));
}

}  // namespace dsec::registry
