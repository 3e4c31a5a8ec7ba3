#include "layers/git/credentials.h"

#include <git2.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/base/child_process.h"
#include "core/base/files.h"
#include "layers/git/libgit.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Words of a netrc file; a quoted one may hold spaces.
std::vector<std::string> netrc_words(std::string_view text) {
  std::vector<std::string> words;
  std::size_t i = 0;
  bool line_start = true;
  while (i < text.size()) {
    if (text[i] == '\n') line_start = true;
    if (std::isspace(static_cast<unsigned char>(text[i]))) {
      ++i;
      continue;
    }
    if (text[i] == '#' && line_start) {
      while (i < text.size() && text[i] != '\n') ++i;
      continue;
    }
    line_start = false;
    std::string word;
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\' && i + 1 < text.size()) ++i;
        word += text[i];
      }
      ++i;
    } else {
      while (i < text.size() && !std::isspace(static_cast<unsigned char>(text[i]))) word += text[i++];
    }
    if (word == "macdef") {  // its body ends with an empty line
      const auto end = text.find("\n\n", i);
      i = end == std::string_view::npos ? text.size() : end + 1;
      continue;
    }
    words.push_back(std::move(word));
  }
  return words;
}

// Whether the URL of credential.<url>.helper speaks of the place.
bool speaks_of(std::string_view pattern, const RemotePlace& place) {
  const RemotePlace wanted = RemotePlace::of(pattern);
  if (wanted.scheme != place.scheme || wanted.host != place.host) return false;
  if (!wanted.user.empty() && wanted.user != place.user) return false;
  return wanted.path.empty() || place.path == wanted.path || place.path.starts_with(wanted.path + "/");
}

void add_helpers(const fs::path& file, const RemotePlace& place, std::vector<std::string>& helpers) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return;
  git_config* opened = nullptr;
  if (git_config_open_ondisk(&opened, file.c_str()) < 0) return;
  const GitPtr<git_config> config(opened);
  struct Context {
    const RemotePlace& place;
    std::vector<std::string>& helpers;
  } context{place, helpers};
  git_config_foreach_match(
      opened, "^credential\\..*helper$",
      [](const git_config_entry* entry, void* payload) {
        auto& [where, list] = *static_cast<Context*>(payload);
        std::string_view name = entry->name;  // "credential.helper" or "credential.URL.helper"
        name.remove_prefix(std::string_view("credential.").size());
        if (name != "helper" && (!name.ends_with(".helper") || !speaks_of(name.substr(0, name.size() - 7), where)))
          return 0;
        const std::string_view value = entry->value ? entry->value : "";
        if (value.empty()) {
          list.clear();
        } else {
          list.emplace_back(value);
        }
        return 0;
      },
      &context);
}

}  // namespace

RemotePlace RemotePlace::of(std::string_view url) {
  RemotePlace place;
  if (const auto scheme = url.find("://"); scheme != std::string_view::npos) {
    place.scheme = url.substr(0, scheme);
    url.remove_prefix(scheme + 3);
  }
  const auto slash = std::min(url.find('/'), url.size());
  std::string_view authority = url.substr(0, slash);
  place.path = url.substr(std::min(slash + 1, url.size()));
  while (place.path.ends_with('/')) place.path.pop_back();
  if (const auto at = authority.rfind('@'); at != std::string_view::npos) {
    place.user = authority.substr(0, std::min(authority.find(':'), at));
    authority.remove_prefix(at + 1);
  }
  place.host = authority;
  return place;
}

std::optional<Login> find_in_netrc(std::string_view netrc, std::string_view host, std::string_view user) {
  const std::vector<std::string> words = netrc_words(netrc);
  for (std::size_t i = 0; i < words.size();) {
    const bool machine = words[i] == "machine" && i + 1 < words.size();
    if (!machine && words[i] != "default") {
      ++i;
      continue;
    }
    const bool matches = !machine || words[i + 1] == host;
    i += machine ? 2 : 1;
    Login login;
    for (; i + 1 < words.size() && (words[i] == "login" || words[i] == "password" || words[i] == "account"); i += 2) {
      if (words[i] == "login") login.user = words[i + 1];
      if (words[i] == "password") login.password = words[i + 1];
    }
    if (matches && (user.empty() || login.user.empty() || login.user == user)) {
      if (login.user.empty()) login.user = user;
      return login;
    }
  }
  return std::nullopt;
}

std::optional<Login> login_from_netrc(const RemotePlace& place) {
  fs::path file = environment("NETRC");
  if (file.empty() && !environment("HOME").empty()) file = fs::path(environment("HOME")) / ".netrc";
  std::error_code ignored;
  if (file.empty() || !fs::is_regular_file(file, ignored) || ::access(file.c_str(), R_OK) != 0) return std::nullopt;
  return find_in_netrc(read_file(file, 1 << 20), place.host.substr(0, place.host.find(':')), place.user);
}

std::vector<std::string> credential_helpers(const RemotePlace& place) {
  start_libgit2();
  std::vector<std::string> helpers;
  add_helpers("/etc/gitconfig", place, helpers);
  const std::string home = environment("HOME");
  std::string xdg = environment("XDG_CONFIG_HOME");
  if (xdg.empty() && !home.empty()) xdg = home + "/.config";
  if (!xdg.empty()) add_helpers(fs::path(xdg) / "git/config", place, helpers);
  if (!home.empty()) add_helpers(fs::path(home) / ".gitconfig", place, helpers);
  return helpers;
}

std::optional<Login> ask_helper(const std::string& helper, const RemotePlace& place) {
  SpawnOptions options;
  if (helper.starts_with('!')) {
    options.argv = {"/bin/sh", "-c", helper.substr(1) + " get"};
  } else if (helper.starts_with('/')) {
    options.argv = {"/bin/sh", "-c", helper + " get"};
  } else {  // "store --file=x": git's helpers lie in PATH or in its own folder
    options.argv = {"/bin/sh", "-c",
                    "PATH=\"$PATH:/usr/lib/git-core:/usr/libexec/git-core\"; git-credential-" + helper + " get"};
  }
  std::string question = "protocol=" + place.scheme + "\nhost=" + place.host + "\n";
  if (!place.path.empty() && place.path.find('\n') == std::string::npos) question += "path=" + place.path + "\n";
  if (!place.user.empty()) question += "username=" + place.user + "\n";
  CommandResult answer;
  try {
    answer = run_command(options, question + "\n");
  } catch (const Error&) {
    return std::nullopt;
  }
  Login login{.user = place.user, .password = {}};
  std::string_view text = answer.out;
  bool found = false;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.starts_with("username=")) login.user = line.substr(9);
    if (line.starts_with("password=")) login.password = line.substr(9), found = true;
  }
  if (!answer.status.ok() || !found) return std::nullopt;
  return login;
}

}  // namespace dsec::layers
