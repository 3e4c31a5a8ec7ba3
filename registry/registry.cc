#include "registry/registry.h"

#include "core/base/error.h"
#include "registry/directory/directory_registry.h"
#include "registry/oci/oci_registry.h"

namespace dsec::registry {

std::unique_ptr<Registry> open_registry(const RegistryAddress& address, OpenMode mode, Progress& progress) {
  if (address.kind == RegistryAddress::Kind::Oci) return open_oci_registry(address, progress);
  return open_directory_registry(address, mode);
}

Error not_in_registry(Registry& registry, const LayerRef& ref) {
  Error error = usage_error("no layer " + quote(ref.str()) + " in registry " + registry.address().shown());
  if (!ref.name) return std::move(error).hint("dsec registry tags, which lists what the registry holds");
  std::vector<std::string> known;
  try {
    for (const CatalogTag& tag : registry.tags({})) known.push_back(tag.str());
  } catch (const Error&) {
    // Not every registry has a catalogue of names; each has the tags of a name.
    for (const CatalogTag& tag : registry.tags(ref.name)) known.push_back(tag.str());
  }
  for (const std::string& near : nearest_names(ref.str(), known)) error.hint(near);
  if (error.hints().empty()) error.hint("dsec registry tags, which lists what the registry holds");
  return error;
}

}  // namespace dsec::registry
