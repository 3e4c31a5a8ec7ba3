#include <sys/mman.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/refusal.h"
#include "layers/oci/image_source.h"

namespace dsec::layers {
namespace {

// distribution-spec: registries must take manifests of 4 MiB; configs and indexes are documents of the same kind.
constexpr std::uint64_t kDocument = 4 << 20;
// Real ones have two levels.
constexpr int kIndexDepth = 8;

constexpr const char* kRefName = "org.opencontainers.image.ref.name";
constexpr const char* kContainerdName = "io.containerd.image.name";

FileSpan in_memory(const std::string& bytes) {
  UniqueFd fd(::memfd_create("blob", MFD_CLOEXEC));
  if (!fd) throw system_error("memfd_create");
  write_all(fd.get(), bytes);
  return {std::make_shared<const UniqueFd>(std::move(fd)), 0, bytes.size()};
}

/// The file of a blob, of the size that its descriptor says.
FileSpan find_blob(const ImageFiles& files, BlobUse use, const Descriptor& descriptor, const std::string& what) {
  auto span = files.blob(use, descriptor.digest, descriptor.size);
  if (!span && descriptor.data) span = in_memory(*descriptor.data);
  if (!span) throw refusal(Refusal::BlobMissing, what + " " + descriptor.digest.str() + " is not there");
  if (span->size != descriptor.size)
    throw refusal(Refusal::SizeMismatch, what + " " + descriptor.digest.str() + " has " + std::to_string(span->size) +
                                             " bytes, not " + std::to_string(descriptor.size));
  return *span;
}

std::string read_document(const ImageFiles& files, BlobUse use, const Descriptor& descriptor, const std::string& what) {
  std::string bytes =
      attempt("cannot read " + what, [&] { return find_blob(files, use, descriptor, what).read(kDocument); });
  if (const Digest digest = Digest::of(bytes); digest != descriptor.digest)
    throw refusal(Refusal::DigestMismatch,
                  what + " has the digest " + digest.str() + ", not " + descriptor.digest.str());
  return bytes;
}

const Json* list_member(const Json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_array() ? &*found : nullptr;
}

/// An image without any layer may say so by a list that is null.
bool is_image(const Json& json) {
  if (list_member(json, "layers")) return true;
  return json.is_object() && json.contains("config") && json.contains("layers") && json["layers"].is_null();
}

std::vector<Descriptor> descriptors_in(const Json& list, const std::string& origin) {
  std::vector<Descriptor> descriptors;
  for (const Json& item : list) descriptors.push_back(Descriptor::parse(item, origin));
  return descriptors;
}

bool is_called(const Descriptor& descriptor, const std::string& reference) {
  const auto has = [&](const char* key) {
    const auto found = descriptor.annotations.find(key);
    return found != descriptor.annotations.end() && found->second == reference;
  };
  return has(kRefName) || has(kContainerdName) || descriptor.digest.str() == reference ||
         "@" + descriptor.digest.str() == reference;
}

std::string name_of(const Descriptor& descriptor) {
  for (const char* key : {kRefName, kContainerdName})
    if (const auto found = descriptor.annotations.find(key); found != descriptor.annotations.end())
      return found->second;
  return "";
}

/// Those of index.json that the reference means: several when they are one image for several platforms.
std::vector<Descriptor> choose_by_name(const std::vector<Descriptor>& all, const std::string& reference) {
  std::vector<std::string> names;
  for (const Descriptor& descriptor : all)
    if (const std::string name = name_of(descriptor);
        !name.empty() && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  std::string listed;
  for (const std::string& name : names) listed += (listed.empty() ? "" : ", ") + name;
  if (reference.empty()) {
    if (names.size() <= 1) return all;
    throw refusal(Refusal::ReferenceMissing, "it holds several images").hint("name one after the path: " + listed);
  }
  std::vector<Descriptor> chosen;
  for (const Descriptor& descriptor : all)
    if (is_called(descriptor, reference)) chosen.push_back(descriptor);
  if (!chosen.empty()) return chosen;
  Error error = refusal(Refusal::ReferenceMissing, "it holds no image " + quote(reference));
  error.hint(names.empty() ? "its images have no names; leave the name out or give a digest" : "it holds " + listed);
  throw error;
}

class PlatformChoice {
 public:
  PlatformChoice(const ImageFiles& files, const Platform& wanted) : files_(files), wanted_(wanted) {}

  struct Found {
    int distance;  // of its platform
    Json manifest;
    Descriptor descriptor;  // of the manifest
  };

  /// The manifest to take of `descriptors`: the nearest one; empty when none suits.
  std::optional<Found> choose(const std::vector<Descriptor>& descriptors, int depth) {
    if (depth > kIndexDepth)
      throw refusal(Refusal::NoImage, "indexes are nested deeper than " + std::to_string(kIndexDepth));
    std::vector<Descriptor> images;
    std::copy_if(descriptors.begin(), descriptors.end(), std::back_inserter(images),
                 [](const Descriptor& descriptor) { return !descriptor.is_attestation(); });
    // What is for another platform is not even read: layouts often hold one platform alone.
    std::vector<std::pair<int, const Descriptor*>> suitable;
    for (const Descriptor& descriptor : images) {
      if (descriptor.platform.empty()) continue;
      if (const auto distance = descriptor.platform.distance(wanted_))
        suitable.emplace_back(*distance, &descriptor);
      else
        seen_.insert(descriptor.platform.str());
    }
    std::stable_sort(suitable.begin(), suitable.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [distance, descriptor] : suitable)
      if (auto found = open(*descriptor, depth, distance)) return found;
    std::optional<int> alone;
    if (depth == 0 && images.size() == 1) alone = 0;
    std::optional<Found> nearest;
    for (const Descriptor& descriptor : images)
      if (descriptor.platform.empty())
        if (auto found = open(descriptor, depth, alone); found && (!nearest || found->distance < nearest->distance))
          nearest = std::move(found);
    return nearest;
  }
  [[noreturn]] void nothing_suits() const {
    if (seen_.empty() && unusable_) throw *unusable_;
    Error error = refusal(Refusal::PlatformMissing, "there is no image for " + wanted_.str());
    if (!seen_.empty()) error.hint("--platform with one of " + seen());
    throw error;
  }

 private:
  std::string seen() const {
    std::string out;
    for (const std::string& platform : seen_) out += (out.empty() ? "" : ", ") + platform;
    return out;
  }

  /// `distance` is what is known of the platform already.
  std::optional<Found> open(const Descriptor& descriptor, int depth, std::optional<int> distance) {
    // Each is read once: indexes that name one another many times over would otherwise take forever.
    if (!opened_.insert(descriptor.digest).second) return std::nullopt;
    const std::string bytes = read_document(files_, BlobUse::Manifest, descriptor, "manifest");
    Json json = parse_document(bytes, "manifest " + descriptor.digest.str());
    if (const Json* children = list_member(json, "manifests"))
      return choose(descriptors_in(*children, "index " + descriptor.digest.str()), depth + 1);
    if (!is_image(json))
      throw refusal(Refusal::NoImage, "manifest " + descriptor.digest.str() + " is neither an index nor an image" +
                                          (json.contains("fsLayers") ? ", but of the old schema 1" : ""));
    if (distance) return Found{*distance, std::move(json), descriptor};
    // Without a platform in its descriptor the config tells which one it is for. What is no image (signatures and the
    // like stand beside images) or is not whole is not taken, and only told when nothing else suits.
    try {
      const Descriptor config = Descriptor::parse(json.value("config", Json()), "manifest " + descriptor.digest.str());
      const ImageDocument document = ImageDocument::parse(read_document(files_, BlobUse::Document, config, "config"),
                                                          "config " + config.digest.str());
      if (const auto suits = document.platform.distance(wanted_)) return Found{*suits, std::move(json), descriptor};
      seen_.insert(document.platform.str());
    } catch (const Error& error) {
      if (!unusable_) unusable_ = error;
    }
    return std::nullopt;
  }

  const ImageFiles& files_;
  const Platform& wanted_;
  std::set<std::string> seen_;
  std::set<Digest> opened_;
  std::optional<Error> unusable_;
};

}  // namespace

FoundImage find_in_layout(const ImageFiles& files, const std::string& reference, const Platform& wanted) {
  const auto index_file = files.find("index.json");
  if (!index_file) {
    Error error = refusal(Refusal::NoImage, "there is no index.json, so this is no OCI image layout");
    if (files.find("manifest.json")) error.hint("docker-archive:, since there is a manifest.json");
    throw error;
  }
  if (const auto file = files.find("oci-layout")) {
    const Json layout = parse_document(file->read(kDocument), "oci-layout");
    const std::string version = layout.is_object() ? json_string_or(layout, "imageLayoutVersion", "1") : "1";
    if (version != "1" && !version.starts_with("1."))
      throw refusal(Refusal::NoImage, "the layout is of version " + quote(version) + ", which dsec does not know");
  }
  const Json index = parse_document(index_file->read(kDocument), "index.json");
  const Json* entries = list_member(index, "manifests");
  if (!entries) throw refusal(Refusal::Damaged, "index.json lists no manifests");

  const std::vector<Descriptor> named = choose_by_name(descriptors_in(*entries, "index.json"), reference);
  if (named.empty()) throw refusal(Refusal::NoImage, "index.json lists no image");
  return find_image(files, named, wanted);
}

FoundImage find_image(const ImageFiles& files, const std::vector<Descriptor>& candidates, const Platform& wanted) {
  PlatformChoice choice(files, wanted);
  const auto chosen = choice.choose(candidates, 0);
  if (!chosen) choice.nothing_suits();
  const Json& manifest = chosen->manifest;

  const Descriptor config = Descriptor::parse(manifest.value("config", Json()), "the manifest");
  if (config.media_type.starts_with("application/vnd.dsec."))
    throw refusal(Refusal::NoImage, "it is a layer that dsec published, no image")
        .hint("dsec pull, with the registry as oci://HOST/PATH");
  FoundImage found{
      ImageDocument::parse(read_document(files, BlobUse::Document, config, "config"), "config " + config.digest.str()),
      {},
      chosen->descriptor};
  std::vector<Descriptor> layers;
  if (const Json* list = list_member(manifest, "layers")) layers = descriptors_in(*list, "the manifest");
  if (layers.size() != found.document.diff_ids.size())
    throw refusal(Refusal::DiffIdMismatch, "the manifest lists " + std::to_string(layers.size()) +
                                               " layers, but the config has diff_ids for " +
                                               std::to_string(found.document.diff_ids.size()));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string name = "layer " + std::to_string(i + 1) + " of " + std::to_string(layers.size());
    found.layers.push_back({name + " (" + layers[i].digest.brief() + ")",
                            find_blob(files, BlobUse::Layer, layers[i], name), layers[i].digest});
  }
  return found;
}

}  // namespace dsec::layers
