#include "core/model/layer_manifest.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"

namespace dsec {
namespace {

constexpr std::array<std::string_view, 4> kRoles = {"meta", "data", "chunks", "disk"};

BlobRole parse_role(const std::string& text) {
  const auto found = std::find(kRoles.begin(), kRoles.end(), text);
  if (found == kRoles.end()) throw usage_error("blob role " + quote(text) + " is unknown");
  return static_cast<BlobRole>(found - kRoles.begin());
}

// Paths are bytes and JSON strings are Unicode: '%' and all bytes outside printable ASCII stand as %XX.
std::string escape_path(const std::string& path) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && byte != '%')
      out += c;
    else
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

std::string unescape_path(const std::string& text) {
  const auto digit = [&](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    throw usage_error("path " + quote(text) + " has an invalid % escape");
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) throw usage_error("path " + quote(text) + " has an invalid % escape");
    out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  return out;
}

std::vector<std::string> strings(const Json& object, const char* key) {
  std::vector<std::string> out;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return out;
  if (!found->is_array()) throw usage_error(quote(key) + " is no list");
  for (const Json& item : *found) {
    if (!item.is_string()) throw usage_error(quote(key) + " holds something else than strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::map<std::string, std::string> string_map(const Json& object, const char* key) {
  std::map<std::string, std::string> out;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return out;
  if (!found->is_object()) throw usage_error(quote(key) + " is no object");
  for (const auto& [name, value] : found->items()) {
    if (!value.is_string()) throw usage_error(quote(key) + " holds something else than strings");
    out.emplace(name, value.get<std::string>());
  }
  return out;
}

Json to_json(const LayerImage& image) {
  Json blobs = Json::array();
  for (const Blob& blob : image.blobs)
    blobs.push_back(
        {{"role", kRoles[static_cast<std::size_t>(blob.role)]}, {"digest", blob.digest.str()}, {"size", blob.size}});
  Json json = {{"blobs", blobs}, {"compression", image.compression}, {"uuid", image.uuid}};
  // Absent in images of files, whose digests are older than this member.
  if (image.disk)
    json["disk"] = {{"format", image.disk->format},
                    {"firmware", image.disk->firmware},
                    {"size", image.disk->size},
                    {"agent", image.disk->agent}};
  return json;
}

DiskForm disk_form_from(const Json& json) {
  const auto agent = json.find("agent");
  if (agent == json.end() || !agent->is_boolean()) throw usage_error("'agent' is neither true nor false");
  DiskForm disk{json_string(json, "format"), json_string(json, "firmware"), json_u64(json, "size"), agent->get<bool>()};
  if (disk.format != "raw" && disk.format != "qcow2")
    throw usage_error("the format " + quote(disk.format) + " of a disk is unknown");
  if (disk.firmware != "bios" && disk.firmware != "uefi")
    throw usage_error("the firmware " + quote(disk.firmware) + " of a disk is unknown");
  return disk;
}

LayerImage image_from_json(const Json& json) {
  LayerImage image;
  image.compression = json_string(json, "compression");
  if (image.compression != "none" && image.compression != "lz4" && image.compression != "zstd")
    throw usage_error("compression " + quote(image.compression) + " is unknown");
  image.uuid = json_string(json, "uuid");
  const auto blobs = json.find("blobs");
  if (blobs == json.end() || !blobs->is_array()) throw usage_error("'blobs' is no list");
  for (const Json& blob : *blobs)
    image.blobs.push_back(
        {parse_role(json_string(blob, "role")), Digest::parse(json_string(blob, "digest")), json_u64(blob, "size")});
  if (const auto disk = json.find("disk"); disk != json.end()) {
    if (!disk->is_object()) throw usage_error("'disk' is no object");
    image.disk = attempt("of a disk", [&] { return disk_form_from(*disk); });
    if (image.blobs.size() != 1 || image.blobs.front().role != BlobRole::Disk)
      throw usage_error("a disk has one blob, of the role 'disk'");
    return image;
  }
  if (!image.find(BlobRole::Meta)) throw usage_error("an image has no meta blob");
  if (image.find(BlobRole::Disk)) throw usage_error("a blob is a disk, and nothing tells its form");
  return image;
}

Json to_json(const Provenance& provenance) {
  Json json = {{"source", provenance.source},
               {"inputs", provenance.inputs},
               {"options", provenance.options},
               {"mkfs", provenance.mkfs}};
  Json steps = Json::array();
  for (const Digest& step : provenance.steps) steps.push_back(step.str());
  json["steps"] = steps;
  if (provenance.built_on) json["built_on"] = provenance.built_on->str();
  return json;
}

Provenance provenance_from_json(const Json& json) {
  Provenance provenance;
  provenance.source = json_string(json, "source");
  provenance.inputs = string_map(json, "inputs");
  provenance.options = string_map(json, "options");
  provenance.mkfs = json_string(json, "mkfs");
  for (const std::string& step : strings(json, "steps")) provenance.steps.push_back(Digest::parse(step));
  if (const std::string built_on = json_string_or(json, "built_on", ""); !built_on.empty())
    provenance.built_on = Digest::parse(built_on);
  return provenance;
}

constexpr std::array<std::pair<const char*, std::int64_t HealthCheck::*>, 5> kHealthNumbers = {
    {{"interval", &HealthCheck::interval},
     {"timeout", &HealthCheck::timeout},
     {"start_period", &HealthCheck::start_period},
     {"start_interval", &HealthCheck::start_interval},
     {"retries", &HealthCheck::retries}}};

Json to_json(const HealthCheck& check) {
  Json json = {{"test", check.test}};
  for (const auto& [name, member] : kHealthNumbers)
    if (check.*member != 0) json[name] = check.*member;
  return json;
}

HealthCheck health_check_from_json(const Json& json) {
  if (!json.is_object()) throw usage_error("'healthcheck' is no object");
  HealthCheck check{.test = strings(json, "test")};
  for (const auto& [name, member] : kHealthNumbers) {
    const auto found = json.find(name);
    if (found == json.end()) continue;
    if (!found->is_number_integer()) throw usage_error(quote(name) + " of 'healthcheck' is no whole number");
    check.*member = found->get<std::int64_t>();
  }
  return check;
}

}  // namespace

const Blob* LayerImage::find(BlobRole role) const noexcept {
  const auto found = std::find_if(blobs.begin(), blobs.end(), [&](const Blob& blob) { return blob.role == role; });
  return found == blobs.end() ? nullptr : &*found;
}

const Blob& LayerImage::blob(BlobRole role) const {
  if (const Blob* found = find(role)) return *found;
  if (disk) throw failure("the image is the disk of a machine, whose files only its own system reads");
  throw failure("the image has no " + std::string(kRoles[static_cast<std::size_t>(role)]) + " blob");
}

Json to_json(const ImageConfig& config) {
  Json json = {{"env", config.env},
               {"workdir", config.workdir},
               {"user", config.user},
               {"stop_signal", config.stop_signal},
               {"entrypoint", config.entrypoint},
               {"command", config.command},
               {"exposed_ports", config.exposed_ports},
               {"volumes", config.volumes},
               {"labels", config.labels}};
  // Absent where they say nothing: digests of manifests are older than these members.
  if (config.healthcheck) json["healthcheck"] = to_json(*config.healthcheck);
  if (!config.shell.empty()) json["shell"] = config.shell;
  if (!config.onbuild.empty()) json["onbuild"] = config.onbuild;
  return json;
}

ImageConfig image_config_from_json(const Json& json) {
  ImageConfig config;
  config.env = strings(json, "env");
  config.workdir = json_string_or(json, "workdir", "");
  config.user = json_string_or(json, "user", "");
  config.stop_signal = json_string_or(json, "stop_signal", "");
  config.entrypoint = strings(json, "entrypoint");
  config.command = strings(json, "command");
  config.exposed_ports = strings(json, "exposed_ports");
  config.volumes = strings(json, "volumes");
  config.labels = string_map(json, "labels");
  if (const auto check = json.find("healthcheck"); check != json.end() && !check->is_null())
    config.healthcheck = health_check_from_json(*check);
  config.shell = strings(json, "shell");
  config.onbuild = strings(json, "onbuild");
  return config;
}

std::string LayerManifest::canonical() const {
  Json json = {{"schema", kSchema},    {"kind", to_string(name.kind)},    {"name", name.name},
               {"platform", platform}, {"config", dsec::to_json(config)}, {"provenance", to_json(provenance)}};
  json["images"] = Json::array();
  for (const LayerImage& image : images) json["images"].push_back(to_json(image));
  json["implicit_parents"] = Json::array();
  for (const std::string& path : implicit_parents) json["implicit_parents"].push_back(escape_path(path));
  // Not in the manifests of other kinds, whose digests are older than this member.
  for (const Digest& lower : lowers) json["lowers"].push_back(lower.str());
  return canonical_json(json);
}

LayerManifest LayerManifest::parse(std::string_view text, std::string_view origin) {
  const Json json = parse_json(text, origin);
  return attempt("manifest " + std::string(origin) + " is not valid", [&] {
    if (const std::uint64_t schema = json_u64(json, "schema"); schema != kSchema)
      throw usage_error("schema " + std::to_string(schema) + " is unknown; this dsec knows " + std::to_string(kSchema));
    LayerManifest manifest{LayerName::parse(json_string(json, "kind") + "/" + json_string(json, "name")),
                           json_string(json, "platform"),
                           {},
                           {},
                           {},
                           {},
                           {}};
    const auto found = json.find("images");
    if (found == json.end() || !found->is_array() || found->empty()) throw usage_error("'images' is no list of images");
    for (const Json& image : *found) manifest.images.push_back(image_from_json(image));
    for (const LayerImage& image : manifest.images)
      if (image.disk && (manifest.images.size() > 1 || manifest.name.kind != LayerKind::Base))
        throw usage_error("a disk is the one image of a base layer");
    manifest.config = image_config_from_json(json.value("config", Json::object()));
    manifest.provenance = provenance_from_json(json.value("provenance", Json::object()));
    for (const std::string& path : strings(json, "implicit_parents"))
      manifest.implicit_parents.push_back(unescape_path(path));
    for (const std::string& lower : strings(json, "lowers")) manifest.lowers.push_back(Digest::parse(lower));
    return manifest;
  });
}

std::uint64_t LayerManifest::total_size() const {
  std::uint64_t total = 0;
  for (const LayerImage& image : images)
    for (const Blob& blob : image.blobs) total += blob.size;
  return total;
}

}  // namespace dsec
