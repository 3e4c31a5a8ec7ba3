#include "registry/web/object_check.h"

#include <map>

#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/blob_download.h"
#include "registry/layout/catalog.h"
#include "registry/layout/catalogue.h"
#include "registry/layout/layout.h"
#include "registry/layout/text_in_hand.h"
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
    for (const CatalogTag& tag : list_tags(place_, {})) check_tag(tag);
    for (const std::string& name : place_.names(std::string(kManifests) + "/")) check_manifest(name);
    for (const auto& [digest, blob] : blobs_) check_blob(blob);
    return std::move(result_);
  }

 private:
  void problem(Kind kind, const std::string& path, std::string what) {
    result_.problems.push_back({kind, path, std::move(what)});
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
    }
  }

  void check_blob(const Blob& blob) {
    const std::string path = blob_name(blob.digest);
    ++result_.blobs;
    const auto size = place_.size(path);
    if (!size)
      problem(Kind::Missing, path, "is named by a manifest and should have " + std::to_string(blob.size) + " bytes");
    else if (*size != blob.size)
      problem(*size < blob.size ? Kind::Truncated : Kind::Altered, path,
              "has " + std::to_string(*size) + " bytes instead of " + std::to_string(blob.size));
    else if (options_.content)
      check_content(blob);
  }

  void check_content(const Blob& blob) {
    const std::string path = blob_name(blob.digest), step = "check " + blob.digest.brief();
    progress_.begin(step);
    try {
      const Digest found = download_blob(
          blob, [](std::string_view) {}, [&](std::uint64_t done) { progress_.advance(step, done, blob.size); },
          [&](http::Download& download) { return place_.read(path, download); });
      result_.bytes += blob.size;
      progress_.end(step, found == blob.digest ? format_size(blob.size) : "bad");
      if (found != blob.digest) problem(Kind::Altered, path, "has other bytes: " + found.str());
    } catch (const Error&) {
      progress_.end(step, "not read");
      throw;
    }
  }

  const ObjectPlace& place_;
  const CheckOptions& options_;
  Progress& progress_;
  std::map<Digest, Blob> blobs_;
  CheckResult result_;
};

}  // namespace

CheckResult check_objects(const RegistryAddress& address, const CheckOptions& options, Progress& progress) {
  if (options.repair)
    throw usage_error("what is behind " + address.url() + " cannot be repaired from here")
        .hint(address.kind == RegistryAddress::Kind::Http
                  ? "dsec registry check --repair file:///PATH on a host that has the directory"
                  : "remove what is damaged with the means of the bucket, then publish again");
  const auto place = open_place(address, OpenMode::Read, progress);
  return ObjectCheck(*place, options, progress).run();
}

}  // namespace dsec::registry
