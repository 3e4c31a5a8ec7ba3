#include "layers/dockerfile/run_mount.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/units.h"

namespace dsec::layers::dockerfile {
namespace fs = std::filesystem;
namespace {

struct Field {
  std::string name, value;
  bool has_value = false;
};

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// NAME=VALUE between commas; a field in quotes may have commas of its own.
std::vector<Field> fields_of(std::string_view text) {
  std::vector<std::string> parts(1);
  bool quoted = false;
  for (const char c : text) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  if (quoted) throw usage_error("a quote (\") in --mount=" + std::string(text) + " is not closed");
  std::vector<Field> fields;
  for (const std::string& part : parts) {
    const std::size_t equals = part.find('=');
    Field field{lower(part.substr(0, equals)), "", equals != std::string::npos};
    if (field.has_value) field.value = part.substr(equals + 1);
    if (field.name == "src") field.name = "source";
    if (field.name == "dst" || field.name == "destination") field.name = "target";
    if (field.name == "ro") field.name = "readonly";
    if (field.name == "rw") field.name = "readwrite";
    fields.push_back(std::move(field));
  }
  return fields;
}

std::uint32_t number(const Field& field, int base, std::uint32_t most) {
  std::uint32_t value = 0;
  const char* const end = field.value.data() + field.value.size();
  const auto [at, error] = std::from_chars(field.value.data(), end, value, base);
  if (field.value.empty() || error != std::errc() || at != end || value > most)
    throw usage_error(field.name + "=" + field.value + " of --mount is " +
                      (base == 8 ? "no octal mode" : "no whole number"));
  return value;
}

bool flag(const Field& field) {
  if (!field.has_value || field.value == "true" || field.value == "1") return true;
  if (field.value == "false" || field.value == "0") return false;
  throw usage_error(field.name + "=" + field.value + " of --mount is neither true nor false");
}

using Kind = RunMount::Kind;
constexpr std::array<std::pair<std::string_view, Kind>, 4> kKinds = {
    {{"bind", Kind::Bind}, {"cache", Kind::Cache}, {"tmpfs", Kind::Tmpfs}, {"secret", Kind::Secret}}};

/// Which fields a kind has, beside "type".
std::vector<std::string> names_of(Kind kind) {
  switch (kind) {
    case Kind::Bind:
      return {"target", "source", "from", "readonly", "readwrite"};
    case Kind::Cache:
      return {"target", "id", "readonly", "readwrite", "sharing", "uid", "gid", "mode"};
    case Kind::Tmpfs:
      return {"target", "size"};
    case Kind::Secret:
      return {"target", "id", "source", "required", "uid", "gid", "mode", "env"};
  }
  return {};
}

Kind kind_of(const std::vector<Field>& fields) {
  const auto type = std::find_if(fields.begin(), fields.end(), [](const Field& field) { return field.name == "type"; });
  if (type == fields.end()) return Kind::Bind;
  for (const auto& [name, kind] : kKinds)
    if (name == type->value) return kind;
  throw usage_error("--mount=type=" + type->value + " is not supported: bind, cache, tmpfs and secret are");
}

void take(const Field& field, RunMount& mount) {
  constexpr std::uint32_t kLargestId = 0xfffffffe;
  if (field.name == "target") mount.target = field.value;
  if (field.name == "source") mount.source = field.value;
  if (field.name == "from") mount.from = field.value;
  if (field.name == "id") mount.id = field.value;
  if (field.name == "env") mount.variable = field.value;
  if (field.name == "readonly") mount.writable = !flag(field);
  if (field.name == "readwrite") mount.writable = flag(field);
  if (field.name == "required") mount.required = flag(field);
  if (field.name == "uid") mount.uid = number(field, 10, kLargestId);
  if (field.name == "gid") mount.gid = number(field, 10, kLargestId);
  if (field.name == "mode") mount.mode = number(field, 8, 07777);
  if (field.name == "size") mount.size = parse_size(field.value);
  if (field.name == "sharing") {
    if (field.value == "shared")
      mount.sharing = RunMount::Sharing::Shared;
    else if (field.value == "private")
      mount.sharing = RunMount::Sharing::Private;
    else if (field.value == "locked")
      mount.sharing = RunMount::Sharing::Locked;
    else
      throw usage_error("sharing=" + field.value + " of --mount is unknown: shared, private or locked");
  }
}

std::string absolute(const std::string& target, const std::string& workdir) {
  fs::path normal = (fs::path(workdir.empty() ? "/" : workdir) / target).lexically_normal();
  if (!normal.has_filename() && normal.has_relative_path()) normal = normal.parent_path();
  if (normal == "/") throw usage_error("--mount cannot have the target " + quote(target));
  return normal.native();
}

void finish_secret(RunMount& mount, const std::string& workdir) {
  if (mount.id.empty()) mount.id = mount.source;
  if (mount.id.empty()) mount.id = fs::path(mount.target).filename().native();
  if (mount.id.empty()) throw usage_error("--mount=type=secret has no id");
  if (!mount.target.empty())
    mount.target = absolute(mount.target, workdir);
  else if (mount.variable.empty())
    mount.target = "/run/secrets/" + fs::path(mount.id).filename().native();
}

}  // namespace

RunMount parse_run_mount(std::string_view text, const std::string& workdir,
                         const std::function<std::string(const std::string&)>& expanded) {
  const std::vector<Field> fields = fields_of(text);
  RunMount mount;
  mount.kind = kind_of(fields);
  mount.writable = mount.kind == Kind::Cache || mount.kind == Kind::Tmpfs;
  if (mount.kind == Kind::Secret) mount.source.clear();
  const std::vector<std::string> known = names_of(mount.kind);
  for (Field field : fields) {
    if (field.name == "type") continue;
    if (std::find(known.begin(), known.end(), field.name) == known.end()) {
      const auto kind =
          std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& k) { return k.second == mount.kind; });
      Error error = usage_error("--mount=type=" + std::string(kind->first) + " has no " + quote(field.name) +
                                ", or it is not supported");
      for (const std::string& near : nearest_names(field.name, known, 1)) error.hint("did you mean " + near + "?");
      throw error;
    }
    const bool may_stand_alone = field.name == "readonly" || field.name == "readwrite" || field.name == "required";
    if (!field.has_value && !may_stand_alone) throw usage_error(field.name + " of --mount has no value");
    if (field.name == "from" && field.value.find('$') != std::string::npos)
      throw usage_error("from=" + field.value + " of --mount: no variables can stand there");
    if (field.has_value && field.name != "from") field.value = expanded(field.value);
    take(field, mount);
  }
  if (mount.kind == Kind::Secret) {
    finish_secret(mount, workdir);
    return mount;
  }
  if (mount.target.empty()) throw usage_error("--mount has no target");
  mount.target = absolute(mount.target, workdir);
  if (mount.kind == Kind::Cache && mount.id.empty()) mount.id = mount.target;
  return mount;
}

std::string mounted_from(std::string_view text) {
  for (const Field& field : fields_of(text))
    if (field.name == "from") return field.value;
  return "";
}

}  // namespace dsec::layers::dockerfile
