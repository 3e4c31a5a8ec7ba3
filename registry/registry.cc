#include "registry/registry.h"

#include <algorithm>

#include "core/base/error.h"
#include "registry/directory/directory_registry.h"
#include "registry/oci/oci_registry.h"
#include "registry/patience.h"
#include "registry/web/web_registry.h"

namespace dsec::registry {

std::unique_ptr<Registry> open_registry(const RegistryAddress& address, OpenMode mode, Progress& progress) {
  switch (address.kind) {
    case RegistryAddress::Kind::Oci:
      return open_oci_registry(address, progress);
    case RegistryAddress::Kind::Http:
    case RegistryAddress::Kind::S3:
      return open_web_registry(address, mode, progress);
    default:
      return open_directory_registry(address, mode, progress);
  }
}

std::unique_ptr<Registry> open_registry(const RegistryAddress& address, const Patience& patience, Progress& progress) {
  switch (address.kind) {
    case RegistryAddress::Kind::Oci:
      return open_oci_registry(address, progress, patience);
    case RegistryAddress::Kind::Http:
    case RegistryAddress::Kind::S3:
      return open_web_registry(address, OpenMode::Read, progress, patience);
    default:
      return open_directory_registry(address, OpenMode::Read, progress, patience.stall / 2);
  }
}

void limit(http::ClientOptions& options, const Patience& patience) {
  options.connect_timeout = options.stall_timeout = patience.stall;
  options.retry.tries = patience.tries;
  // A server that asks to be left alone for so long is obeyed while somebody may still wait.
  options.retry.patience = 4 * patience.stall;
}

Error not_in_registry(Registry& registry, const LayerRef& ref) {
  Error error = usage_error("no layer " + quote(ref.str()) + " in registry " + registry.address().shown());
  if (registry.address().kind == RegistryAddress::Kind::Http && ref.digest_prefix && ref.digest_prefix->size() < 64)
    error.hint("the whole digest, in case the registry's catalogue is behind; dsec-registry(5)");
  if (!ref.name) return std::move(error).hint("dsec registry tags, which lists what the registry holds");
  std::vector<std::string> known;
  // Not every registry has a catalogue of names; most have the tags of a name.
  for (const std::optional<LayerName>& which : {std::optional<LayerName>(), ref.name}) {
    try {
      for (const CatalogTag& tag : registry.tags(which)) known.push_back(tag.str());
      break;
    } catch (const Error&) {
      // What is missing is told without near names, too.
    }
  }
  for (const std::string& near : nearest_names(ref.str(), known)) error.hint(near);
  if (error.hints().empty()) error.hint("dsec registry tags, which lists what the registry holds");
  return error;
}

std::set<Digest> tagged_layers(Registry& registry) {
  std::set<Digest> layers;
  for (const CatalogTag& tag : registry.tags({}))
    if (const auto layer = registry.tag(tag.name, tag.tag)) layers.insert(*layer);
  return layers;
}

std::optional<Digest> only_layer(const LayerRef& ref, const std::vector<Digest>& found) {
  if (found.empty()) return std::nullopt;
  if (found.size() == 1) return found.front();
  Error error = usage_error(quote(ref.str()) + " is ambiguous: several layers of the registry have this prefix");
  for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 6); ++i) error.hint(found[i].str());
  throw error;
}

}  // namespace dsec::registry
