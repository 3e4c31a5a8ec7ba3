#include "registry/layout/catalogue.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace {

constexpr int kSchema = 1;
constexpr const char* kType = "dsec-catalogue";

bool belongs(const std::string& name) {
  if (name.starts_with(kTags)) return tag_of_name(name).has_value();
  const auto digest = digest_of_manifest_file(last_part(name));
  return digest && manifest_name(*digest) == name;
}

}  // namespace

std::vector<std::string> names_for_catalogue(const NamedFiles& files) {
  std::vector<std::string> names = files.names(std::string(kManifests) + "/");
  const std::vector<std::string> tags = files.names(std::string(kTags) + "/");
  names.insert(names.end(), tags.begin(), tags.end());
  std::erase_if(names, [](const std::string& name) { return !belongs(name); });
  return names;
}

std::string catalogue_text(const std::vector<std::string>& names) {
  return canonical_json({{"type", kType}, {"schema", kSchema}, {"names", names}}) + "\n";
}

std::vector<std::string> parse_catalogue(std::string_view text) {
  const Json json = parse_json(text, kCatalogue);
  if (json_string(json, "type") != kType) throw usage_error(std::string(kCatalogue) + " is of another type");
  if (const std::uint64_t schema = json_u64(json, "schema"); schema != kSchema)
    throw failure(std::string(kCatalogue) + " has format " + std::to_string(schema) + ", this dsec knows " +
                  std::to_string(kSchema))
        .hint("use a newer dsec");
  const auto listed = json.find("names");
  if (listed == json.end() || !listed->is_array()) throw usage_error(std::string(kCatalogue) + " has no 'names'");
  std::vector<std::string> names;
  for (const Json& name : *listed) {
    if (!name.is_string()) throw usage_error(std::string(kCatalogue) + " names something else than files");
    names.push_back(name.get<std::string>());
  }
  std::erase_if(names, [](const std::string& name) { return !belongs(name); });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace dsec::registry
