#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "registry/layout/named_files.h"

namespace dsec::registry {

/// catalogue.json: the names of all manifests and tags of a registry, for readers that cannot list its directory
/// (man/dsec-registry.5.md). Derived from the directory; nothing but names is taken from it.

inline constexpr std::uint64_t kLargestCatalogue = 64ull << 20;

/// What the catalogue of a registry should hold: no name that is of no manifest and no tag.
std::vector<std::string> names_for_catalogue(const NamedFiles& files);
/// Its bytes for names in order.
std::string catalogue_text(const std::vector<std::string>& names);
/// Sorted; names that no manifest and no tag has are left out. Throws Error for anything that is no catalogue.
std::vector<std::string> parse_catalogue(std::string_view text);

}  // namespace dsec::registry
