#include "registry/registries.h"

#include <algorithm>

#include "core/base/error.h"
#include "registry/directory/registry_root.h"
#include "registry/directory/three_fs.h"
#include "registry/oci/oci_registry.h"
#include "registry/registry.h"
#include "registry/web/place.h"

namespace dsec::registry {
namespace {

const RegistryEntry* find_entry(const Config& config, const std::string& name) {
  const auto found = std::find_if(config.registries.begin(), config.registries.end(),
                                  [&](const RegistryEntry& entry) { return entry.name == name; });
  return found == config.registries.end() ? nullptr : &*found;
}

Error unknown_registry(const Config& config, const std::string& name) {
  Error error = usage_error("no registry " + quote(name) + " is configured");
  std::vector<std::string> known;
  for (const RegistryEntry& entry : config.registries) known.push_back(entry.name);
  for (const std::string& near : nearest_names(name, known)) error.hint(near);
  if (error.hints().empty()) error.hint("dsec registry add " + (name.empty() ? "NAME" : name) + " URL");
  return error;
}

}  // namespace

std::vector<RegistryStatus> list_registries(const Config& config) {
  std::vector<RegistryStatus> registries;
  for (const RegistryEntry& entry : config.registries) {
    RegistryStatus status{entry, "directory", ""};
    try {
      const RegistryAddress address = RegistryAddress::of(entry);
      status.kind = to_string(address.kind);
      if (address.is_directory())
        RegistryRoot::open(address);
      else if (address.kind == RegistryAddress::Kind::Oci)
        ping_oci_registry(address);
      else
        ping_place(address);
    } catch (const Error& error) {
      status.problem = std::string(error.chain().back());
    }
    registries.push_back(std::move(status));
  }
  return registries;
}

void add_registry(const Config& config, const RegistryEntry& entry) {
  const RegistryAddress address = RegistryAddress::of(entry);
  if (!address.is_directory() && entry.in_place)
    throw usage_error("the kernel cannot read " + address.url() + " in place").hint("leave --in-place out");
  if (address.kind != RegistryAddress::Kind::S3 &&
      (!entry.endpoint.empty() || !entry.region.empty() || entry.path_style))
    throw usage_error("only s3: registries have an endpoint, a region and a path style")
        .hint("leave --endpoint, --region and --path-style out");
  if (!entry.endpoint.empty()) http::Url::parse(entry.endpoint);
  if (const RegistryEntry* present = find_entry(config, entry.name)) {
    if (*present == entry) return;
    throw usage_error("registry " + quote(entry.name) + " is configured already, as " + present->url)
        .hint("dsec registry rm " + entry.name + ", or another name");
  }
  if (address.kind == RegistryAddress::Kind::ThreeFs && !address.allow_any_fs) require_three_fs(address.root);
  add_registry_entry(entry);
}

void remove_registry(const Config& config, const std::string& name) {
  if (!find_entry(config, name)) throw unknown_registry(config, name);
  if (!remove_registry_entry(name))
    throw usage_error("registry " + quote(name) + " is configured for the whole system, not by you")
        .hint("edit /etc/dsec/config.yaml as root");
}

RegistryAddress find_registry(const Config& config, const std::string& name_or_url) {
  if (const RegistryEntry* entry = find_entry(config, name_or_url)) return RegistryAddress::of(*entry);
  if (name_or_url.find('/') == std::string::npos && name_or_url.find(':') == std::string::npos)
    throw unknown_registry(config, name_or_url);
  RegistryAddress address = RegistryAddress::parse(name_or_url);
  // A configured registry keeps its settings when its URL is given.
  for (const RegistryEntry& entry : config.registries)
    if (const RegistryAddress known = RegistryAddress::of(entry); known.url() == address.url()) return known;
  return address;
}

std::vector<RegistryTag> registry_tags(const RegistryAddress& address, Progress& progress,
                                       const std::optional<LayerName>& name) {
  const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Read, progress);
  std::vector<RegistryTag> tags;
  for (const CatalogTag& tag : registry->tags(name)) {
    RegistryTag row{.ref = tag.str(), .digest = {}, .platform = "", .problem = ""};
    try {
      row.digest = registry->tag(tag.name, tag.tag);
      if (!row.digest) continue;  // removed since it was listed
      const LayerManifest manifest = registry->manifest(*row.digest);
      row.bytes = manifest.total_size();
      row.platform = manifest.platform;
    } catch (const Error& error) {
      row.problem = error.message();
      row.foreign = error.kind() == ErrorKind::Usage;
    }
    tags.push_back(std::move(row));
  }
  return tags;
}

namespace {

struct Missing {
  LayerRef ref;
  Error error;
};

// One error of all, with the hints of each.
Error all_missing(std::span<const Missing> missing, std::span<const RegistryAddress> registries) {
  Error error = missing.back().error;
  std::string names = missing.back().ref.str();
  for (std::size_t i = missing.size() - 1; i-- > 0;) {
    error.context(missing[i].error.message());
    for (const std::string& hint : missing[i].error.hints()) error.hint(hint);
    names = missing[i].ref.str() + ", " + names;
  }
  std::string asked;
  for (const RegistryAddress& address : registries) asked += (asked.empty() ? "" : ", ") + address.shown();
  if (!asked.empty()) error.context("neither this host nor registry " + asked + " has " + names);
  return error;
}

}  // namespace

std::vector<engine::StoredLayer> ensure_local(LocalStore& store, std::span<const LayerRef> refs,
                                              std::span<const RegistryAddress> registries, Progress& progress,
                                              PullMode mode) {
  std::vector<engine::StoredLayer> layers;
  std::vector<Missing> missing;
  for (const LayerRef& ref : refs) {
    auto found = store.find(ref);
    for (std::size_t i = 0; !found && i < registries.size(); ++i) {
      // One registry that is away does not keep a layer from coming from another; one that has it and fails does.
      bool has_it = false;
      try {
        has_it = open_registry(registries[i], OpenMode::Read, progress)->resolve(ref).has_value();
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::Usage && ref.digest_prefix) throw;
        progress.warn(error.message());
      }
      if (has_it) found = pull(store, ref, registries[i], progress, mode).layer;
    }
    if (found) {
      layers.push_back(std::move(*found));
      continue;
    }
    try {
      layers.push_back(store.get(ref));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Usage) throw;
      missing.push_back({ref, error});
    }
  }
  if (!missing.empty()) throw all_missing(missing, registries);
  return layers;
}

}  // namespace dsec::registry
