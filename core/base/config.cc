#include "core/base/config.h"

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "core/base/variables.h"
#include "core/base/yaml.h"

namespace dsec {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSystemFile = "/etc/dsec/config.yaml";
constexpr std::uint64_t kLargestFile = 1 << 20;
const std::array<std::string, 12> kKeys = {"version",  "registries",   "hosts",   "presets",   "resolver", "contexts",
                                           "defaults", "trajectories", "secrets", "on_demand", "store",    "offline"};
const std::array<std::string, 3> kHostKeys = {"plain_http", "ca", "mirrors"};
const std::array<std::string, 2> kTrajectoryKeys = {"keep", "size"};
const std::array<std::string, 5> kOnDemandKeys = {"default", "timeout", "cache", "fill", "eager_share"};
const std::array<std::string, 1> kStoreKeys = {"limit"};
const std::array<std::string, 2> kContextKeys = {"url", "token_file"};
const std::array<std::string, 1> kDefaultKeys = {"context"};
constexpr const char* kRegistries = "registries";
constexpr const char* kContexts = "contexts";
constexpr const char* kDefaults = "defaults";
const std::array<std::string, 6> kEntryKeys = {"url", "in_place", "allow_any_fs", "endpoint", "region", "path_style"};

bool valid_entry_name(std::string_view name) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 63 && plain(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
}

Error fault(const std::string& origin, const YAML::Mark& mark, const std::string& what) {
  return usage_error(origin + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1) + ": " +
                     what);
}

Error unknown_key(const std::string& origin, const YAML::Node& key, std::span<const std::string> known) {
  const std::string name = key.as<std::string>("");
  Error error = fault(origin, key.Mark(), "unknown key " + quote(name));
  for (const std::string& near : nearest_names(name, known, 1)) error.hint(near);
  return error;
}

bool boolean(const std::string& origin, const YAML::Node& value) {
  bool result = false;
  if (!value.IsScalar() || !YAML::convert<bool>::decode(value, result))
    throw fault(origin, value.Mark(), "true or false is expected");
  return result;
}

std::string* text_member(RegistryEntry& entry, const std::string& name) {
  return name == "url" ? &entry.url : name == "endpoint" ? &entry.endpoint : name == "region" ? &entry.region : nullptr;
}

RegistryEntry parse_entry(const std::string& origin, const YAML::Node& key, const YAML::Node& value) {
  RegistryEntry entry;
  entry.name = key.as<std::string>("");
  if (!valid_entry_name(entry.name))
    throw fault(origin, key.Mark(), quote(entry.name) + " is no valid name of a registry");
  if (value.IsScalar()) {
    entry.url = value.Scalar();
  } else if (value.IsMap()) {
    for (const auto& member : value) {
      const std::string name = member.first.as<std::string>("");
      if (std::string* text = text_member(entry, name)) {
        if (!member.second.IsScalar())
          throw fault(origin, member.second.Mark(), name == "url" ? "a URL is expected" : "a text is expected");
        *text = member.second.Scalar();
      } else if (name == "in_place")
        entry.in_place = boolean(origin, member.second);
      else if (name == "allow_any_fs")
        entry.allow_any_fs = boolean(origin, member.second);
      else if (name == "path_style")
        entry.path_style = boolean(origin, member.second);
      else
        throw unknown_key(origin, member.first, kEntryKeys);
    }
  } else {
    throw fault(origin, value.Mark(), "a URL, or a mapping with a 'url', is expected");
  }
  if (entry.url.empty()) throw fault(origin, key.Mark(), "registry " + quote(entry.name) + " has no 'url'");
  return entry;
}

ContextEntry parse_context(const std::string& origin, const YAML::Node& key, const YAML::Node& value) {
  ContextEntry entry;
  entry.name = key.as<std::string>("");
  if (!valid_entry_name(entry.name) || entry.name == kLocalContext)
    throw fault(origin, key.Mark(), quote(entry.name) + " is no valid name of a context");
  if (value.IsScalar()) {
    entry.url = value.Scalar();
  } else if (value.IsMap()) {
    for (const auto& member : value) {
      const std::string name = member.first.as<std::string>("");
      if (std::find(kContextKeys.begin(), kContextKeys.end(), name) == kContextKeys.end())
        throw unknown_key(origin, member.first, kContextKeys);
      if (!member.second.IsScalar()) throw fault(origin, member.second.Mark(), "a text is expected");
      (name == "url" ? entry.url : entry.token_file) = member.second.Scalar();
    }
  } else {
    throw fault(origin, value.Mark(), "a URL, or a mapping with a 'url', is expected");
  }
  if (entry.url.empty()) throw fault(origin, key.Mark(), "context " + quote(entry.name) + " has no 'url'");
  return entry;
}

void parse_contexts(const std::string& origin, const YAML::Node& node, Config& config) {
  if (!node.IsMap()) throw fault(origin, node.Mark(), "a mapping of names to contexts is expected");
  for (const auto& entry : node) {
    ContextEntry parsed = parse_context(origin, entry.first, entry.second);
    if (std::any_of(config.contexts.begin(), config.contexts.end(),
                    [&](const ContextEntry& other) { return other.name == parsed.name; }))
      throw fault(origin, entry.first.Mark(), "context " + quote(parsed.name) + " stands twice");
    config.contexts.push_back(std::move(parsed));
  }
  std::sort(config.contexts.begin(), config.contexts.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

void parse_defaults(const std::string& origin, const YAML::Node& node, Config& config) {
  if (!node.IsMap()) throw fault(origin, node.Mark(), "a mapping with 'context' is expected");
  for (const auto& member : node) {
    if (member.first.as<std::string>("") != kDefaultKeys[0]) throw unknown_key(origin, member.first, kDefaultKeys);
    if (!member.second.IsScalar()) throw fault(origin, member.second.Mark(), "the name of a context is expected");
    config.default_context = member.second.Scalar();
  }
}

void parse_trajectories(const std::string& origin, const YAML::Node& value, Config& config) {
  if (!value.IsMap()) throw fault(origin, value.Mark(), "a mapping with 'keep' and 'size' is expected");
  for (const auto& member : value) {
    const std::string name = member.first.as<std::string>("");
    if (std::find(kTrajectoryKeys.begin(), kTrajectoryKeys.end(), name) == kTrajectoryKeys.end())
      throw unknown_key(origin, member.first, kTrajectoryKeys);
    try {
      if (name == "keep") config.trajectory_age = parse_duration(member.second.as<std::string>(""));
      if (name == "size") config.trajectory_bytes = parse_size(member.second.as<std::string>(""));
    } catch (const Error& error) {
      throw fault(origin, member.second.Mark(), error.message());
    }
  }
}

void parse_on_demand(const std::string& origin, const YAML::Node& value, OnDemandConfig& config) {
  if (value.IsScalar()) {
    config.by_default = boolean(origin, value);
    return;
  }
  if (!value.IsMap())
    throw fault(origin, value.Mark(),
                "true, false, or a mapping with 'default', 'timeout', 'cache', 'fill' and 'eager_share' is expected");
  for (const auto& member : value) {
    const std::string name = member.first.as<std::string>("");
    if (std::find(kOnDemandKeys.begin(), kOnDemandKeys.end(), name) == kOnDemandKeys.end())
      throw unknown_key(origin, member.first, kOnDemandKeys);
    if (name == "default" || name == "fill") {
      (name == "fill" ? config.fill : config.by_default) = boolean(origin, member.second);
      continue;
    }
    if (name == "eager_share") {
      double& share = config.eager_share;
      if (!member.second.IsScalar() || !YAML::convert<double>::decode(member.second, share) ||
          !(share >= 0 && share <= 1))
        throw fault(origin, member.second.Mark(), "a part of the whole is expected, from 0 to 1");
      continue;
    }
    try {
      if (name == "timeout") config.timeout = parse_duration(member.second.as<std::string>(""));
      if (name == "cache") config.cache_bytes = parse_size(member.second.as<std::string>(""));
    } catch (const Error& error) {
      throw fault(origin, member.second.Mark(), error.message());
    }
  }
}

void parse_store(const std::string& origin, const YAML::Node& value, Config& config) {
  if (!value.IsMap()) throw fault(origin, value.Mark(), "a mapping with 'limit' is expected");
  for (const auto& member : value) {
    if (member.first.as<std::string>("") != kStoreKeys[0]) throw unknown_key(origin, member.first, kStoreKeys);
    try {
      config.store_limit = parse_size(member.second.as<std::string>(""));
    } catch (const Error& error) {
      throw fault(origin, member.second.Mark(), error.message());
    }
  }
}

void parse_secrets(const std::string& origin, const YAML::Node& value, Config& config) {
  if (!value.IsSequence()) throw fault(origin, value.Mark(), "a list of words is expected");
  config.secrets.emplace();
  for (const auto& word : value) {
    if (!word.IsScalar() || word.Scalar().empty()) throw fault(origin, word.Mark(), "a word is expected");
    config.secrets->push_back(word.Scalar());
  }
}

std::vector<std::string> parse_texts(const std::string& origin, const YAML::Node& node, const char* what) {
  std::vector<std::string> texts;
  if (node.IsScalar()) return {node.Scalar()};
  if (!node.IsSequence()) throw fault(origin, node.Mark(), std::string("a list of ") + what + " is expected");
  for (const auto& item : node) {
    if (!item.IsScalar()) throw fault(origin, item.Mark(), std::string("a list of ") + what + " is expected");
    texts.push_back(item.Scalar());
  }
  return texts;
}

// What a host and a mirror may look like is checked where they are used.
void parse_hosts(const std::string& origin, const YAML::Node& node, Config& config) {
  if (!node.IsMap()) throw fault(origin, node.Mark(), "a mapping of hosts to their settings is expected");
  for (const auto& entry : node) {
    HostEntry host;
    host.host = entry.first.as<std::string>("");
    if (!entry.second.IsMap())
      throw fault(origin, entry.second.Mark(), "a mapping with 'plain_http', 'ca' or 'mirrors' is expected");
    for (const auto& member : entry.second) {
      const std::string name = member.first.as<std::string>("");
      if (name == "plain_http")
        host.plain_http = boolean(origin, member.second);
      else if (name == "ca" && member.second.IsScalar())
        host.ca = member.second.Scalar();
      else if (name == "ca")
        throw fault(origin, member.second.Mark(), "a file is expected");
      else if (name == "mirrors")
        host.mirrors = parse_texts(origin, member.second, "hosts");
      else
        throw unknown_key(origin, member.first, kHostKeys);
    }
    config.hosts.push_back(std::move(host));
  }
}

// What the rules mean is checked where they are used.
void parse_presets(const std::string& origin, const YAML::Node& node, Config& config) {
  if (!node.IsMap()) throw fault(origin, node.Mark(), "a mapping of names to network rules is expected");
  for (const auto& preset : node) {
    const std::string name = preset.first.as<std::string>("");
    if (!valid_entry_name(name) || name.find('.') != std::string::npos)
      throw fault(origin, preset.first.Mark(), quote(name) + " is no name for a preset");
    config.presets[name] = parse_texts(origin, preset.second, "network rules");
  }
}

YAML::Node load_yaml(const std::string& text, const std::string& origin) {
  try {
    return dsec::load_yaml(text);
  } catch (const YAML::Exception& error) {
    throw fault(origin, error.mark, "no valid YAML: " + error.msg);
  }
}

// Empty when there is no such file. The system's file may be for root alone: others go without it.
std::optional<std::string> read_config(const fs::path& file) {
  if (::access(file.c_str(), R_OK) != 0 && (errno == ENOENT || errno == ENOTDIR || file == kSystemFile))
    return std::nullopt;
  return read_file(file, kLargestFile);
}

std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? "''" : std::string(1, c);
  return "'" + out + "'";
}

std::string entry_line(const RegistryEntry& entry) {
  std::string line = entry.name + ": {url: " + quoted(entry.url);
  if (!entry.endpoint.empty()) line += ", endpoint: " + quoted(entry.endpoint);
  if (!entry.region.empty()) line += ", region: " + quoted(entry.region);
  if (entry.path_style) line += std::string(", path_style: ") + (*entry.path_style ? "true" : "false");
  if (entry.in_place) line += ", in_place: true";
  if (entry.allow_any_fs) line += ", allow_any_fs: true";
  return line + "}";
}

std::string entry_line(const ContextEntry& entry) {
  std::string line = entry.name + ": {url: " + quoted(entry.url);
  if (!entry.token_file.empty()) line += ", token_file: " + quoted(entry.token_file);
  return line + "}";
}

/// The user's file as lines, and where in it the entries of one block stand.
class ConfigText {
 public:
  ConfigText(const std::string& text, const std::string& origin, std::string block) : name_(std::move(block)) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines_.push_back(line + "\n");
    const YAML::Node root = load_yaml(text, origin);
    if (!root.IsMap()) return;
    for (const auto& member : root)
      if (member.first.as<std::string>("") == name_) {
        begin_ = static_cast<std::size_t>(member.first.Mark().line);
        block_ =
            member.second.IsNull() || (member.second.IsMap() && member.second.Style() == YAML::EmitterStyle::Block);
        if (!member.second.IsMap()) continue;
        for (const auto& entry : member.second) {
          starts_.emplace_back(entry.first.as<std::string>(""), static_cast<std::size_t>(entry.first.Mark().line));
          indent_ = std::string(static_cast<std::size_t>(entry.first.Mark().column), ' ');
        }
      }
  }

  bool editable() const { return block_; }

  void remove(const std::string& name) {
    for (std::size_t i = 0; i < starts_.size(); ++i) {
      if (starts_[i].first != name) continue;
      std::size_t end = i + 1 < starts_.size() ? starts_[i + 1].second : block_end();
      // Comments and blank lines above the next entry are its own.
      while (end > starts_[i].second + 1 && is_filler(lines_[end - 1])) --end;
      lines_.erase(at(starts_[i].second), at(end));
      const std::size_t removed = end - starts_[i].second;
      starts_.erase(starts_.begin() + static_cast<std::ptrdiff_t>(i));
      for (std::size_t k = i; k < starts_.size(); ++k) starts_[k].second -= removed;
      return;
    }
  }

  void add(const std::string& line) {
    if (!begin_) {
      begin_ = lines_.size();
      lines_.push_back(name_ + ":\n");
    }
    lines_.insert(at(block_end()), indent_ + line + "\n");
  }

  std::string str() const {
    std::string text;
    for (const std::string& line : lines_) text += line;
    return text;
  }

 private:
  static bool is_filler(const std::string& line) {
    const std::size_t first = line.find_first_not_of(" \t\n");
    return first == std::string::npos || line[first] == '#';
  }
  std::vector<std::string>::iterator at(std::size_t line) { return lines_.begin() + static_cast<std::ptrdiff_t>(line); }
  // The line after the last one of the block that is neither blank nor a comment.
  std::size_t block_end() const {
    std::size_t end = *begin_ + 1;
    for (std::size_t line = end; line < lines_.size(); ++line) {
      if (is_filler(lines_[line])) continue;
      if (lines_[line][0] != ' ') break;
      end = line + 1;
    }
    return end;
  }

  const std::string name_;
  std::vector<std::string> lines_;
  std::optional<std::size_t> begin_;
  bool block_ = true;
  std::string indent_ = "  ";
  std::vector<std::pair<std::string, std::size_t>> starts_;
};

template <typename Entry>
void put_entry(std::vector<Entry>& entries, const std::string& name, const Entry* entry) {
  std::erase_if(entries, [&](const Entry& present) { return present.name == name; });
  if (entry) entries.push_back(*entry);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

// Replaces the entry `name` of a block by `line`, or takes it out where that is empty; `change` says what that means.
void edit(const char* block, const std::string& name, const std::string& line,
          const std::function<void(Config&)>& change) {
  const fs::path file = Config::user_file();
  make_directories(file.parent_path(), 0700);
  const FileLock lock(file.native() + ".lock", FileLock::Mode::Exclusive);
  const std::string before = read_config(file).value_or("");
  Config wanted = Config::parse(before, file.native());
  change(wanted);

  ConfigText text(before, file.native(), block);
  text.remove(name);
  if (!line.empty()) text.add(line);
  const std::string after = text.str();
  // The text is edited by lines; should that not mean what was wanted, the file stays as it is.
  bool right = text.editable();
  try {
    const Config is = Config::parse(after, file.native());
    right = right && is.registries == wanted.registries && is.contexts == wanted.contexts &&
            is.default_context == wanted.default_context;
  } catch (const Error&) {
    right = false;
  }
  if (!right)
    throw failure("the " + quote(block) + " of " + quote(file.native()) + " are not written as one entry per line")
        .hint("edit the file by hand, as its man page dsec-home(5) describes");
  write_file_atomic(file, after, 0600);
}

// What the user's own file says.
Config own_config() {
  const fs::path file = Config::user_file();
  return Config::parse(read_config(file).value_or(""), file.native());
}

}  // namespace

Config Config::parse(const std::string& yaml, const std::string& origin) {
  const YAML::Node root = load_yaml(yaml, origin);
  Config config;
  if (root.IsNull()) return config;
  if (!root.IsMap()) throw fault(origin, root.Mark(), "a mapping is expected");
  for (const auto& member : root) {
    const std::string key = member.first.as<std::string>("");
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) throw unknown_key(origin, member.first, kKeys);
    if (key == "version" && member.second.as<std::string>("") != "1")
      throw fault(origin, member.second.Mark(), "version 1 is what this dsec knows");
    if (member.second.IsNull()) continue;
    if (key == "trajectories") parse_trajectories(origin, member.second, config);
    if (key == "secrets") parse_secrets(origin, member.second, config);
    if (key == "on_demand") parse_on_demand(origin, member.second, config.on_demand.emplace());
    if (key == "store") parse_store(origin, member.second, config);
    if (key == "offline") config.offline = boolean(origin, member.second);
    if (key == "hosts") parse_hosts(origin, member.second, config);
    if (key == kContexts) parse_contexts(origin, member.second, config);
    if (key == kDefaults) parse_defaults(origin, member.second, config);
    if (key == "presets") parse_presets(origin, member.second, config);
    if (key == "resolver") config.resolvers = parse_texts(origin, member.second, "name servers");
    if (key != kRegistries) continue;
    if (!member.second.IsMap())
      throw fault(origin, member.second.Mark(), "a mapping of names to registries is expected");
    for (const auto& entry : member.second) {
      RegistryEntry parsed = parse_entry(origin, entry.first, entry.second);
      if (std::any_of(config.registries.begin(), config.registries.end(),
                      [&](const RegistryEntry& other) { return other.name == parsed.name; }))
        throw fault(origin, entry.first.Mark(), "registry " + quote(parsed.name) + " stands twice");
      config.registries.push_back(std::move(parsed));
    }
  }
  std::sort(config.registries.begin(), config.registries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return config;
}

static std::optional<fs::path> find_user_file() {
  if (const std::string file = variable("DSEC_CONFIG"); !file.empty()) return fs::absolute(file);
  if (const std::string base = variable("XDG_CONFIG_HOME"); base.starts_with('/'))
    return fs::path(base) / "dsec/config.yaml";
  if (const std::string home = variable("HOME"); home.starts_with('/'))
    return fs::path(home) / ".config/dsec/config.yaml";
  return std::nullopt;
}

fs::path Config::user_file() {
  if (std::optional<fs::path> file = find_user_file()) return *std::move(file);
  throw usage_error("no place for the configuration is known").hint("set DSEC_CONFIG or HOME");
}

Config Config::load() {
  Config config;
  if (variable("DSEC_CONFIG").empty())
    if (const auto text = read_config(kSystemFile)) config = parse(*text, kSystemFile);
  const std::optional<fs::path> file = find_user_file();
  const auto text = file ? read_config(*file) : std::nullopt;
  if (!text) return config;
  Config own = parse(*text, file->native());
  for (RegistryEntry& entry : config.registries)
    if (std::none_of(own.registries.begin(), own.registries.end(),
                     [&](const RegistryEntry& other) { return other.name == entry.name; }))
      own.registries.push_back(std::move(entry));
  for (ContextEntry& entry : config.contexts)
    if (std::none_of(own.contexts.begin(), own.contexts.end(),
                     [&](const ContextEntry& other) { return other.name == entry.name; }))
      own.contexts.push_back(std::move(entry));
  std::sort(own.contexts.begin(), own.contexts.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  if (own.default_context.empty()) own.default_context = std::move(config.default_context);
  if (!own.on_demand) own.on_demand = config.on_demand;
  if (!own.store_limit) own.store_limit = config.store_limit;
  if (!own.offline) own.offline = config.offline;
  if (!own.trajectory_age) own.trajectory_age = config.trajectory_age;
  if (!own.trajectory_bytes) own.trajectory_bytes = config.trajectory_bytes;
  if (!own.secrets) own.secrets = std::move(config.secrets);
  for (HostEntry& host : config.hosts)
    if (std::none_of(own.hosts.begin(), own.hosts.end(),
                     [&](const HostEntry& other) { return other.host == host.host; }))
      own.hosts.push_back(std::move(host));
  own.presets.merge(config.presets);
  if (own.resolvers.empty()) own.resolvers = std::move(config.resolvers);
  std::sort(own.registries.begin(), own.registries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return own;
}

void add_registry_entry(const RegistryEntry& entry) {
  if (!valid_entry_name(entry.name))
    throw usage_error(quote(entry.name) + " is no valid name of a registry")
        .hint("use lowercase letters, digits, '.', '_' and '-', at most 63");
  attempt("cannot add registry " + quote(entry.name), [&] {
    edit(kRegistries, entry.name, entry_line(entry),
         [&](Config& config) { put_entry(config.registries, entry.name, &entry); });
  });
}

bool remove_registry_entry(const std::string& name) {
  return attempt("cannot remove registry " + quote(name), [&] {
    const Config own = own_config();
    if (std::none_of(own.registries.begin(), own.registries.end(),
                     [&](const RegistryEntry& entry) { return entry.name == name; }))
      return false;
    edit(kRegistries, name, "", [&](Config& config) { put_entry<RegistryEntry>(config.registries, name, nullptr); });
    return true;
  });
}

void add_context_entry(const ContextEntry& entry) {
  if (!valid_entry_name(entry.name) || entry.name == kLocalContext)
    throw usage_error(quote(entry.name) + " is no valid name of a context")
        .hint("use lowercase letters, digits, '.', '_' and '-', at most 63; 'local' is this host");
  attempt("cannot add context " + quote(entry.name), [&] {
    edit(kContexts, entry.name, entry_line(entry),
         [&](Config& config) { put_entry(config.contexts, entry.name, &entry); });
  });
}

bool remove_context_entry(const std::string& name) {
  return attempt("cannot remove context " + quote(name), [&] {
    const Config own = own_config();
    if (own.default_context == name) set_default_context("");
    if (std::none_of(own.contexts.begin(), own.contexts.end(),
                     [&](const ContextEntry& entry) { return entry.name == name; }))
      return false;
    edit(kContexts, name, "", [&](Config& config) { put_entry<ContextEntry>(config.contexts, name, nullptr); });
    return true;
  });
}

void set_default_context(const std::string& name) {
  attempt("cannot change the default context", [&] {
    edit(kDefaults, "context", name.empty() ? "" : "context: " + quoted(name),
         [&](Config& config) { config.default_context = name; });
  });
}

}  // namespace dsec
