#include "registry/oci/remote_image.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "core/base/error.h"
#include "registry/oci/access.h"
#include "registry/oci/reference.h"

namespace dsec::registry {
namespace {

class OciImage : public engine::RemoteImage {
 public:
  OciImage(const Config& config, const std::string& text, Progress& progress)
      : reference_(ImageReference::parse(text)),
        progress_(progress),
        access_(config, [this](const std::string& message) { progress_.warn(message); }) {
    for (const std::string& mirror : access_.mirrors(reference_.host)) {
      const std::size_t slash = mirror.find('/');
      const std::string path = slash == std::string::npos ? "" : mirror.substr(slash + 1) + "/";
      places_.push_back({mirror.substr(0, slash), path + reference_.repository});
    }
    places_.push_back({reference_.host, reference_.repository});
  }

  std::string name() const override { return reference_.str(); }
  void cancel() override { access_.cancel(); }

  Root root() override {
    return attempt("cannot get image " + name(), [&] {
      const ManifestDocument found = find_manifest(reference_.target());
      return Root{found.digest, found.bytes.size(), found.media_type};
    });
  }

  std::string manifest(const Digest& digest) override { return find_manifest(digest.str()).bytes; }

  std::string document(const Digest& digest) override {
    std::optional<std::string> text;
    anywhere("blob " + digest.str(), [&](const Place& place) {
      text = access_.at(place.host).blob(place.repository, digest);
      return text.has_value();
    });
    return *text;
  }

  void fetch(const Digest& digest, std::uint64_t size, Sink& sink) override {
    for (;;) {
      // What comes from the registry alone is compared by the caller, and nobody is left to ask.
      const bool compare = first() + 1 < places_.size();
      Sha256 hash;
      http::Download download(size, [&](std::string_view piece) {
        if (compare) hash.update(piece);
        sink.piece(piece);
      });
      const std::size_t place = anywhere("blob " + digest.str(), [&](const Place& at) {
        download.etag.clear();  // another place gives other tags to the same bytes
        return access_.at(at.host).read_blob(at.repository, digest, download);
      });
      if (!compare) return;
      const Digest found = hash.finish();
      if (found == digest) return;
      // Of several that gave parts of it nobody knows whose are wrong: all of them are passed over.
      const std::size_t wrong = std::min(place, places_.size() - 2);
      progress_.warn("mirror " + where(wrong) + " is passed over: the bytes of blob " + digest.str() +
                     " have the digest " + found.str());
      pass_over(wrong);
      sink.anew();
    }
  }

 private:
  struct Place {
    std::string host, repository;
  };

  std::string where(std::size_t place) const { return places_[place].host + "/" + places_[place].repository; }

  /// At the first place that has it, which is returned; throws the error of the last one. A mirror that fails is passed
  /// over from then on.
  template <typename Action>
  std::size_t anywhere(const std::string& what, Action&& action) {
    for (std::size_t i = first();; ++i) {
      const bool last = i + 1 == places_.size();
      try {
        if (action(places_[i])) return i;
        if (last) throw failure(where(i) + " has no " + what);
        progress_.warn("mirror " + where(i) + " has no " + what);
      } catch (const Error& error) {
        if (last) throw;
        progress_.warn("mirror " + where(i) + " is passed over: " + error.message());
        pass_over(i);
      }
    }
  }

  std::size_t first() {
    const std::lock_guard guard(mutex_);
    return first_;
  }
  void pass_over(std::size_t place) {
    const std::lock_guard guard(mutex_);
    first_ = std::max(first_, place + 1);
  }

  ManifestDocument find_manifest(const std::string& target) {
    {
      const std::lock_guard guard(mutex_);
      if (const auto known = manifests_.find(target); known != manifests_.end()) return known->second;
    }
    std::optional<ManifestDocument> found;
    anywhere("manifest " + target, [&](const Place& place) {
      found = access_.at(place.host).manifest(place.repository, target);
      return found.has_value();
    });
    const std::lock_guard guard(mutex_);
    manifests_.emplace(found->digest.str(), *found);
    return *found;
  }

  const ImageReference reference_;
  Progress& progress_;
  OciAccess access_;
  std::vector<Place> places_;
  std::mutex mutex_;
  std::size_t first_ = 0;
  std::map<std::string, ManifestDocument> manifests_;
};

}  // namespace

engine::OpenRemoteImage remote_images() {
  return [](const std::string& reference, Progress& progress) -> std::unique_ptr<engine::RemoteImage> {
    return std::make_unique<OciImage>(Config::load(), reference, progress);
  };
}

}  // namespace dsec::registry
