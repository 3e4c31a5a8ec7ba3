#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/progress.h"
#include "registry/pull.h"
#include "registry/registry_url.h"
#include "registry/store/local_store.h"

namespace dsec::registry {

struct RegistryStatus {
  RegistryEntry entry;
  std::string kind;     ///< "directory", "3fs", "oci", "https", "s3"
  std::string problem;  ///< why it cannot be used now; empty when it can
};
std::vector<RegistryStatus> list_registries(const Config& config);

/// Records a registry under a name in the user's configuration. Its directory need not exist yet, but a 3fs: URL must
/// lie on 3FS unless entry.allow_any_fs. An entry of that name is refused unless it is the same.
void add_registry(const Config& config, const RegistryEntry& entry);
/// Throws Error (Usage) with near names when there is none.
void remove_registry(const Config& config, const std::string& name);

/// What --to, --from and --registry take: a configured name, or a URL. Throws Error (Usage) with near names.
RegistryAddress find_registry(const Config& config, const std::string& name_or_url);

/// One tag of a registry.
struct RegistryTag {
  std::string ref;               ///< "base/debian:12"
  std::optional<Digest> digest;  ///< empty when the tag is damaged or foreign
  std::uint64_t bytes = 0;       ///< of the layer's blobs; 0 when its manifest cannot be read
  std::string platform;
  std::string problem;   ///< why digest or size are not known; empty otherwise
  bool foreign = false;  ///< it is no layer, an image for example, which is no fault
};
/// All tags, or those of one name ("base/debian"); sorted.
std::vector<RegistryTag> registry_tags(const RegistryAddress& address, Progress& progress,
                                       const std::optional<LayerName>& name = {});

/// What `run` and `build` need before they start: each reference from the store, else pulled from the first registry
/// that has it. Throws Error (Usage) naming the reference, and the registries that were asked.
std::vector<engine::StoredLayer> ensure_local(LocalStore& store, std::span<const LayerRef> refs,
                                              std::span<const RegistryAddress> registries, Progress& progress,
                                              PullMode mode = PullMode::Whole);

}  // namespace dsec::registry
