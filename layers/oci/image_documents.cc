#include "layers/oci/image_documents.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "layers/archive/refusal.h"
#include "layers/archive/xattrs.h"

namespace dsec::layers {
namespace {

/// Documents come from outside: whatever is wrong with one is told as a refused input that names it.
template <typename Action>
decltype(auto) reading(const std::string& origin, Action&& action) {
  try {
    return action();
  } catch (Error& error) {
    if (error.kind() != ErrorKind::Usage) throw std::move(error.context(origin));
    throw refusal(Refusal::Damaged, origin + ": " + error.message());
  } catch (const nlohmann::json::exception& error) {
    throw refusal(Refusal::Damaged, origin + ": " + error.what());
  }
}

const Json* member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::vector<std::string> string_list(const Json& object, const char* key) {
  const Json* list = member(object, key);
  return list ? list->get<std::vector<std::string>>() : std::vector<std::string>();
}

std::map<std::string, std::string> string_map(const Json& object, const char* key) {
  const Json* map = member(object, key);
  return map ? map->get<std::map<std::string, std::string>>() : std::map<std::string, std::string>();
}

/// The names of an object used as a set: {"80/tcp": {}}.
std::vector<std::string> name_set(const Json& object, const char* key) {
  std::vector<std::string> names;
  if (const Json* set = member(object, key)) {
    if (!set->is_object()) throw usage_error(quote(key) + " is no object");
    for (const auto& [name, value] : set->items()) names.push_back(name);
  }
  return names;
}

/// Docker's; empty for one that says nothing but what is inherited.
std::optional<HealthCheck> health_check_from(const Json& json) {
  const auto number = [&](const char* key) {
    const Json* value = member(json, key);
    return value ? value->get<std::int64_t>() : 0;
  };
  HealthCheck check{.test = string_list(json, "Test"),
                    .interval = number("Interval"),
                    .timeout = number("Timeout"),
                    .start_period = number("StartPeriod"),
                    .start_interval = number("StartInterval"),
                    .retries = number("Retries")};
  return check.test.empty() ? std::nullopt : std::optional(std::move(check));
}

Platform platform_from(const Json& json) {
  return {json_string_or(json, "os", ""), json_string_or(json, "architecture", ""),
          json_string_or(json, "variant", "")};
}

}  // namespace

Json parse_document(std::string_view bytes, const std::string& origin) {
  Json json = reading(origin, [&] { return parse_json(bytes, "document"); });
  if (!json.is_object() && !json.is_array()) throw refusal(Refusal::Damaged, origin + " is no JSON object");
  return json;
}

Platform Platform::parse(std::string_view text) {
  Platform platform;
  const std::size_t first = text.find('/');
  if (first == std::string_view::npos || first == 0 || first + 1 == text.size())
    throw usage_error(quote(text) + " is no platform").hint("for instance linux/amd64 or linux/arm/v7");
  platform.os = text.substr(0, first);
  text.remove_prefix(first + 1);
  const std::size_t second = text.find('/');
  platform.architecture = text.substr(0, second);
  if (second != std::string_view::npos) platform.variant = text.substr(second + 1);
  return platform;
}

std::string Platform::str() const { return os + "/" + architecture + (variant.empty() ? "" : "/" + variant); }

std::optional<int> Platform::distance(const Platform& wanted) const {
  constexpr int kNewer = 1000;
  if (os != wanted.os || architecture != wanted.architecture) return std::nullopt;
  const auto number = [&](const std::string& text) -> std::optional<int> {
    if (text.empty()) return architecture == "arm64" ? 8 : architecture == "arm" ? 7 : 1;
    int value = 0;
    const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), value);
    if (text[0] != 'v' || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  };
  const auto mine = number(variant), theirs = number(wanted.variant);
  if (!mine || !theirs) return variant == wanted.variant || wanted.variant.empty() ? std::optional(0) : std::nullopt;
  if (*mine <= *theirs) return *theirs - *mine;
  return wanted.variant.empty() ? std::optional(kNewer + *mine) : std::nullopt;
}

Descriptor Descriptor::parse(const Json& json, const std::string& origin) {
  return reading(origin, [&] {
    if (!json.is_object()) throw usage_error("a descriptor is no object");
    Descriptor descriptor{Digest::parse(json_string(json, "digest")),
                          json_u64(json, "size"),
                          json_string_or(json, "mediaType", ""),
                          json_string_or(json, "artifactType", ""),
                          {},
                          string_map(json, "annotations"),
                          {}};
    if (const std::string embedded = json_string_or(json, "data", ""); !embedded.empty()) {
      descriptor.data = base64_decode(embedded);
      if (!descriptor.data) throw usage_error("'data' is no base64");
    }
    if (const Json* stated = member(json, "platform")) descriptor.platform = platform_from(*stated);
    return descriptor;
  });
}

bool Descriptor::is_attestation() const {
  const auto type = annotations.find("vnd.docker.reference.type");
  return (type != annotations.end() && type->second == "attestation-manifest") ||
         (platform.os == "unknown" && platform.architecture == "unknown");
}

ImageDocument ImageDocument::parse(std::string_view bytes, const std::string& origin) {
  const Json json = parse_document(bytes, origin);
  return reading(origin, [&] {
    const Json* rootfs = json.is_object() ? member(json, "rootfs") : nullptr;
    if (!rootfs) throw refusal(Refusal::NoImage, "it has no root filesystem, so this is an artifact and no image");
    ImageDocument document{platform_from(json), {}, {}, Digest::of(bytes)};
    if (const std::string type = json_string_or(*rootfs, "type", "layers"); type != "layers")
      throw refusal(Refusal::NoImage, "its root filesystem is of the unknown type " + quote(type));
    for (const std::string& diff_id : string_list(*rootfs, "diff_ids"))
      document.diff_ids.push_back(Digest::parse(diff_id));
    if (const Json* settings = member(json, "config")) {
      document.config.env = string_list(*settings, "Env");
      document.config.workdir = json_string_or(*settings, "WorkingDir", "");
      document.config.user = json_string_or(*settings, "User", "");
      document.config.stop_signal = json_string_or(*settings, "StopSignal", "");
      document.config.entrypoint = string_list(*settings, "Entrypoint");
      document.config.command = string_list(*settings, "Cmd");
      document.config.exposed_ports = name_set(*settings, "ExposedPorts");
      document.config.volumes = name_set(*settings, "Volumes");
      document.config.labels = string_map(*settings, "Labels");
      document.config.shell = string_list(*settings, "Shell");
      document.config.onbuild = string_list(*settings, "OnBuild");
      if (const Json* check = member(*settings, "Healthcheck")) document.config.healthcheck = health_check_from(*check);
    }
    return document;
  });
}

}  // namespace dsec::layers
