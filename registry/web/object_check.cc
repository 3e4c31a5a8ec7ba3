#include "registry/web/object_check.h"

#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/blob_download.h"
#include "registry/layout/catalog.h"
#include "registry/layout/catalogue.h"
#include "registry/layout/layout.h"
#include "registry/layout/publisher_lease.h"
#include "registry/layout/text_in_hand.h"
#include "registry/named_blob_check.h"
#include "registry/web/bucket_notes.h"
#include "registry/web/place.h"

namespace dsec::registry {
namespace {

using Kind = RegistryProblem::Kind;
using Missing = NamedFiles::Missing;

class ObjectCheck {
 public:
  ObjectCheck(const ObjectPlace& place, const CheckOptions& options, Progress& progress)
      : place_(place), options_(options), progress_(progress) {}

  CheckResult run() {
    const auto* const bucket = dynamic_cast<const S3Place*>(&place_);
    if (bucket) read_leases(*bucket);
    // Blobs before manifests: what a publisher adds meanwhile it names afterwards.
    const std::vector<Digest> present = bucket ? list_blobs(place_) : std::vector<Digest>();
    for (const CatalogTag& tag : list_tags(place_, {})) check_tag(tag);
    for (const std::string& name : place_.names(std::string(kManifests) + "/")) check_manifest(name);
    for (const auto& [digest, blob] : blobs_) check_blob(blob);
    for (const Digest& blob : present) check_unreferenced(blob);
    return std::move(result_);
  }

 private:
  void problem(Kind kind, const std::string& path, std::string what) {
    result_.problems.push_back({kind, path, std::move(what)});
  }

  void read_leases(const S3Place& bucket) {
    for (const FoundLease& lease : find_leases(BucketNotes(bucket)))
      if (!lease.live)
        problem(Kind::Leftover, lease_name(lease.publisher), "is the lease of a publisher that was stopped");
      else if (!lease.unreadable.empty()) {
        problem(Kind::Altered, lease_name(lease.publisher), "could not be read: " + lease.unreadable);
        references_known_ = false;
      } else if (!lease.removes)
        announced_.insert(lease.digests.begin(), lease.digests.end());
  }

  void check_unreferenced(const Digest& blob) {
    if (blobs_.contains(blob) || announced_.contains(blob) || !references_known_) return;
    const auto size = place_.size(blob_name(blob));
    if (size) problem(Kind::Unreferenced, blob_name(blob), "is named by no manifest and has " + format_size(*size));
  }

  // Throws Error when it could not be read, which says nothing about what it holds.
  std::optional<std::string> text_of(const std::string& name) const {
    return place_.read_file(name, kLargestCatalogue, Missing::Possible);
  }

  void check_tag(const CatalogTag& tag) {
    const std::string path = tag_name(tag.name, tag.tag);
    ++result_.tags;
    const auto text = text_of(path);
    if (!text) return problem(Kind::Catalogue, path, "is named by the catalogue, and is not there");
    std::optional<Digest> digest;
    try {
      digest = read_tag(TextInHand(*text), tag.name, tag.tag, Missing::Possible);
    } catch (const Error& error) {
      return problem(Kind::DamagedTag, path, error.message());
    }
    if (!place_.has_file(manifest_name(*digest)))
      problem(Kind::DanglingTag, path, "names " + digest->str() + ", which has no manifest");
  }

  void check_manifest(const std::string& name) {
    const auto digest = digest_of_manifest_file(last_part(name));
    if (!digest || manifest_name(*digest) != name) {
      problem(Kind::Leftover, name, "is nothing that belongs into a registry");
      return;
    }
    ++result_.layers;
    const auto text = text_of(name);
    if (!text) return problem(Kind::DamagedManifest, name, "is not there");
    try {
      const LayerManifest manifest = read_manifest(TextInHand(*text), *digest);
      for (const LayerImage& image : manifest.images)
        for (const Blob& blob : image.blobs) blobs_.emplace(blob.digest, blob);
    } catch (const Error& error) {
      problem(Kind::DamagedManifest, name, error.message());
      references_known_ = false;
    }
  }

  void check_blob(const Blob& blob) {
    const std::string path = blob_name(blob.digest);
    ReadWhole read;
    if (options_.content)
      read = [&](const std::function<void(std::uint64_t)>& advance) {
        return download_blob(
            blob, [](std::string_view) {}, advance,
            [&](http::Download& download) { return place_.read(path, download); });
      };
    check_named_blob(blob, place_.size(path), read, result_, progress_);
  }

  const ObjectPlace& place_;
  const CheckOptions& options_;
  Progress& progress_;
  std::map<Digest, Blob> blobs_;
  std::set<Digest> announced_;
  bool references_known_ = true;
  CheckResult result_;
};

}  // namespace

CheckResult check_objects(const RegistryAddress& address, const CheckOptions& options, Progress& progress) {
  if (options.repair)
    throw usage_error("what is behind " + address.url() + " cannot be repaired from here")
        .hint(address.kind == RegistryAddress::Kind::Http
                  ? "dsec registry check --repair file:///PATH on a host that has the directory"
                  : "remove what is damaged with the means of the bucket, then publish again; dsec registry gc "
                    "removes what nothing names");
  const auto place = open_place(address, OpenMode::Read, progress);
  return ObjectCheck(*place, options, progress).run();
}

}  // namespace dsec::registry
