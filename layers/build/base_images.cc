#include "layers/build/base_images.h"

#include <algorithm>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/import.h"
#include "layers/oci/image_source.h"

namespace dsec::layers {
namespace fs = std::filesystem;
using dockerfile::NamedImage;
using engine::StoredLayer;
namespace {

constexpr const char* kHub = "docker.io";
constexpr std::string_view kLibrary = "library/";

/// The digest at the end of the label of a layer that was fetched.
std::optional<Digest> fetched_digest(const StoredLayer& layer) {
  const auto label = layer.labels.find(kImageLabel);
  if (label == layer.labels.end()) return std::nullopt;
  const std::size_t at = label->second.rfind('@');
  if (at == std::string::npos) return std::nullopt;
  try {
    return Digest::parse(label->second.substr(at + 1));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

ImageName ImageName::parse(const std::string& text) {
  ImageName name{.host = kHub, .repository = text, .tag = "", .digest = {}};
  std::string& rest = name.repository;
  if (const std::size_t at = rest.find('@'); at != std::string::npos) {
    const std::string digest = rest.substr(at + 1);
    if (!digest.starts_with("sha256:") || !Digest::valid_hex(digest.substr(7)))
      throw usage_error(quote(digest) + " is no sha256 digest");
    name.digest = Digest::parse(digest);
    rest.erase(at);
  }
  const std::size_t slash = rest.find('/');
  if (slash != std::string::npos) {
    const std::string first = rest.substr(0, slash);
    if (first.find_first_of(".:") != std::string::npos || first == "localhost") {
      name.host = first == "index.docker.io" ? kHub : first;
      rest.erase(0, slash + 1);
    }
  }
  if (const std::size_t colon = rest.rfind(':'); colon != std::string::npos) {
    name.tag = rest.substr(colon + 1);
    rest.erase(colon);
    if (!valid_tag(name.tag)) throw usage_error(quote(name.tag) + " is no tag");
  }
  if (name.tag.empty() && !name.digest) name.tag = "latest";
  if (name.host == kHub && rest.find('/') == std::string::npos) rest.insert(0, kLibrary);
  (void)name.layer();
  return name;
}

std::string ImageName::str() const { return host + "/" + repository + (digest ? "@" + digest->str() : ":" + tag); }

LayerRef ImageName::layer() const {
  std::string name = repository;
  if (host == kHub) {
    if (name.starts_with(kLibrary)) name.erase(0, kLibrary.size());
  } else {
    std::string place;
    for (const char c : host) place += c == ':' ? "__" : std::string(1, static_cast<char>(std::tolower(c)));
    name = place + "/" + name;
  }
  return LayerRef::parse("base/" + name + ":" + (tag.empty() ? "latest" : tag));
}

std::optional<LayerRef> named_layer_ref(const std::string& name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos || !parse_layer_kind(std::string_view(name).substr(0, slash))) return std::nullopt;
  return LayerRef::parse(name);
}

const StoredLayer& BaseImages::get(const NamedImage& image) {
  const std::string platform = image.platform.empty() ? set_.platform : image.platform;
  const std::string key = image.name + " " + platform;
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  try {
    StoredLayer layer = find({image.name, platform, image.by});
    check(layer, image.name, platform);
    return known_.emplace(key, std::move(layer)).first->second;
  } catch (Error& error) {
    const Error placed = dockerfile::error_at(set_.origin, image.by, "cannot have " + quote(image.name));
    error.context(placed.message());
    throw;
  }
}

void BaseImages::require(const std::vector<NamedImage>& images) {
  std::set<std::string> seen;
  std::vector<Error> away;
  for (const NamedImage& image : images) {
    if (!seen.insert(image.name + " " + image.platform).second) continue;
    try {
      (void)get(image);
    } catch (const Error& error) {
      away.push_back(error);
    }
  }
  if (away.empty()) return;
  if (away.size() == 1) throw away.front();
  Error all = usage_error(away.back().message());
  for (auto error = away.rbegin() + 1; error != away.rend(); ++error) all.context(error->message());
  all.context(set_.origin + " needs " + std::to_string(away.size()) + " images that cannot be had");
  for (const Error& error : away)
    for (const std::string& hint : error.hints())
      if (std::find(all.hints().begin(), all.hints().end(), hint) == all.hints().end()) all.hint(hint);
  throw all;
}

StoredLayer BaseImages::find(const NamedImage& image) {
  if (const std::optional<LayerRef> ref = named_layer_ref(image.name)) {
    if (std::optional<StoredLayer> layer = set_.layer(*ref)) return *std::move(layer);
    throw usage_error("there is no layer " + ref->str())
        .hint("dsec import " + ref->str() + " SOURCE, or dsec pull; dsec layer ls shows what is here");
  }
  const ImageName name = ImageName::parse(image.name);
  StoredLayer layer = find_image(name, image);
  note(name, image.platform, layer);
  return layer;
}

StoredLayer BaseImages::find_image(const ImageName& name, const NamedImage& image) {
  const std::string& platform = image.platform;
  if (const auto locked = set_.locked.find(input_name(name, platform)); locked != set_.locked.end())
    return fetch_locked(name, Digest::parse(locked->second), platform);
  if (name.digest) return fetch_locked(name, *name.digest, platform);
  std::optional<StoredLayer> here;
  if (platform == set_.platform) {
    here = set_.layer(name.layer());
  } else {
    // Only this host's images have the name; others are found by what the tag meant when it was fetched.
    here = set_.cache.find(key_of(Digest::of(name.str()), platform));
  }
  if (here && set_.pull && !set_.offline)
    if (std::optional<StoredLayer> other = newer(name, *here, platform)) return *std::move(other);
  return here ? *std::move(here) : fetch(name, std::nullopt, platform);
}

StoredLayer BaseImages::fetch_locked(const ImageName& name, const Digest& digest, const std::string& platform) {
  if (std::optional<StoredLayer> here = by_digest(name, digest, platform)) return *std::move(here);
  return fetch(name, digest, platform);
}

std::optional<StoredLayer> BaseImages::by_digest(const ImageName& name, const Digest& digest,
                                                 const std::string& platform) {
  if (std::optional<StoredLayer> kept = set_.cache.find(key_of(digest, platform))) return kept;
  if (platform != set_.platform) return std::nullopt;
  std::optional<StoredLayer> tagged = set_.store.find(name.layer());
  return tagged && fetched_digest(*tagged) == digest ? tagged : std::nullopt;
}

/// Empty when what is here was not fetched, or is what the registry has.
std::optional<StoredLayer> BaseImages::newer(const ImageName& name, const StoredLayer& here,
                                             const std::string& platform) {
  const std::optional<Digest> had = fetched_digest(here);
  if (!had || !set_.images) return std::nullopt;
  const Digest now = set_.images("//" + name.str(), set_.progress)->root().digest;
  if (now == *had) return std::nullopt;
  return fetch(name, std::nullopt, platform);
}

StoredLayer BaseImages::fetch(const ImageName& name, const std::optional<Digest>& digest, const std::string& platform) {
  const std::string wanted = name.host + "/" + name.repository + (digest ? "@" + digest->str() : ":" + name.tag);
  if (set_.offline)
    throw usage_error(wanted + " is not here, and fetching it needs a network")
        .hint("dsec build without --offline, or dsec import " + name.layer().str() + " SOURCE");
  if (!set_.images) throw usage_error(wanted + " is not here, and there is no way to a registry");
  const fs::path locks = set_.spool.parent_path() / "build-locks";
  make_directories(locks, 0700);
  // Builds of this and other processes want the same image at the same time: the first fetches it for all.
  const FileLock lock(locks / Digest::of(wanted + " " + platform).hex(), FileLock::Mode::Exclusive);
  const Digest found = digest ? *digest : set_.images("//" + wanted, set_.progress)->root().digest;
  const bool tag = !digest && platform == set_.platform;
  std::optional<StoredLayer> layer = by_digest(name, found, platform);
  const LayerRef ref = name.layer();
  if (layer) {
    if (tag) set_.store.tag(layer->digest, *ref.name, *ref.tag);
  } else {
    const std::string pinned = name.host + "/" + name.repository + "@" + found.str();
    ImageSource source("//" + pinned, set_.images, set_.spool);
    ImportOptions options{.name = *ref.name, .tag = tag ? *ref.tag : "", .platform = platform};
    options.labels[kImageLabel] = digest ? pinned : wanted + "@" + found.str();
    layer = import_layer(set_.store, source, options, set_.progress);
  }
  set_.cache.put(key_of(found, platform), *layer);
  if (!digest && !tag) set_.cache.put(key_of(Digest::of(name.str()), platform), *layer);
  return *std::move(layer);
}

void BaseImages::check(const StoredLayer& layer, const std::string& name, const std::string& platform) const {
  if (layer.manifest.provenance.built_on || !layer.manifest.lowers.empty())
    throw usage_error(layer.manifest.name.str() + " stands on another layer, and is no whole tree")
        .hint("name a base, or build this layer as steps of dsec.yaml");
  const std::string& has = layer.manifest.platform;
  if (!has.empty() && has != platform && !has.starts_with(platform + "/") && !platform.starts_with(has + "/"))
    throw usage_error("the layer " + layer.manifest.name.str() + " is for " + has + ", not for " + platform)
        .hint(name.find('/') == std::string::npos ? "FROM --platform=" + has : "dsec import --platform");
}

void BaseImages::note(const ImageName& name, const std::string& platform, const StoredLayer& layer) {
  if (name.digest)
    inputs_[input_name(name, platform)] = name.digest->str();
  else if (const auto locked = set_.locked.find(input_name(name, platform)); locked != set_.locked.end())
    inputs_[locked->first] = locked->second;
  else if (const std::optional<Digest> digest = fetched_digest(layer))
    inputs_[input_name(name, platform)] = digest->str();
}

std::string BaseImages::input_name(const ImageName& name, const std::string& platform) const {
  return "image " + name.str() + (platform == set_.platform ? "" : " " + platform);
}

Digest BaseImages::key_of(const Digest& image, const std::string& platform) const {
  return Digest::of("image\n" + image.str() + "\n" + platform);
}

}  // namespace dsec::layers
