#include "registry/publication.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/units.h"

namespace dsec::registry {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
}

}  // namespace

std::string transfer_text(std::uint64_t bytes, std::chrono::milliseconds duration) {
  const auto ms = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 1));
  return format_size(bytes) + " in " + format_duration(duration) + ", " + format_size(bytes * 1000 / ms) + "/s";
}

std::map<Digest, Blob> blobs_of(const LayerManifest& manifest) {
  std::map<Digest, Blob> blobs;
  for (const LayerImage& image : manifest.images)
    for (const Blob& blob : image.blobs) blobs.emplace(blob.digest, blob);
  return blobs;
}

PublishResult Publication::run(const std::vector<WantedLayer>& layers, const std::string& host_id) {
  const auto start = Clock::now();
  // Announced before anything is looked at.
  std::set<Digest> announced;
  for (const WantedLayer& wanted : layers) {
    announced.insert(wanted.digest);
    for (const auto& [digest, blob] : blobs_of(wanted.manifest)) announced.insert(digest);
  }
  publisher_ = to_.publisher(contents_, host_id, std::move(announced));
  publisher_->begin(progress_);
  for (const WantedLayer& wanted : layers)
    attempt("cannot publish " + wanted.ref + " to " + to_.address().shown(), [&] { publish_layer(wanted); });
  attempt("cannot bring registry " + to_.address().shown() + " up to date", [&] { publisher_->finish(); });
  publisher_.reset();
  result_.duration = since(start);
  return std::move(result_);
}

void Publication::publish_layer(const WantedLayer& wanted) {
  const std::string step = "publish " + wanted.ref;
  const auto start = Clock::now();
  PublishedLayer published{wanted.ref, wanted.digest, wanted.manifest.total_size(), 0};
  progress_.begin(step);
  std::uint64_t done = 0;
  const auto blobs = blobs_of(wanted.manifest);
  for (const auto& [digest, blob] : blobs) {
    const bool copied =
        put_blob(blob, [&](std::uint64_t part) { progress_.advance(step, done + part, published.bytes); });
    (copied ? published.bytes_copied : result_.bytes_present) += blob.size;
    done += blob.size;
    progress_.advance(step, done, published.bytes);
  }
  // Somebody's repair may have removed a blob between our looking and its seeing our lease.
  for (const auto& [digest, blob] : blobs)
    if (!publisher_->has_blob(blob)) put_blob(blob, [](std::uint64_t) {});
  attempt("cannot write the manifest", [&] { publisher_->put_manifest(wanted.manifest); });
  if (wanted.prefetch_list && to_.prefetch_list(wanted.digest) != wanted.prefetch_list)
    attempt("cannot write the prefetch list",
            [&] { publisher_->put_prefetch_list(wanted.manifest, *wanted.prefetch_list); });
  for (const CatalogTag& tag : wanted.tags)
    attempt("cannot write tag " + tag.str(), [&] { publisher_->put_tag(tag.name, tag.tag, wanted.manifest); });
  result_.bytes_copied += published.bytes_copied;
  progress_.end(step,
                published.bytes_copied ? transfer_text(published.bytes_copied, since(start)) : "was there already");
  result_.layers.push_back(std::move(published));
}

// False when nothing had to be copied.
bool Publication::put_blob(const Blob& blob, const std::function<void(std::uint64_t)>& advance) {
  if (publisher_->has_blob(blob)) {
    if (options_.verify_existing) publisher_->verify_blob(blob);
    return false;
  }
  return attempt("cannot copy blob " + blob.digest.brief(), [&] { return publisher_->put_blob(blob, advance); });
}

}  // namespace dsec::registry
