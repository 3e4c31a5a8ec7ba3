#include "registry/oci/credentials.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/json_bytes.h"
#include "core/base/units.h"
#include "core/base/variables.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kLargestFile = 4 << 20;
constexpr std::size_t kLargestAnswer = 64 << 10;
// docker's own name for its registry, under which it keeps the login.
constexpr std::string_view kHubKey = "index.docker.io";
constexpr const char* kHubServer = "https://index.docker.io/v1/";

/// "https://index.docker.io/v1/" and "docker.io" are one key.
std::string key_of(std::string key) {
  for (const std::string_view scheme : {"https://", "http://"})
    if (key.starts_with(scheme)) key.erase(0, scheme.size());
  while (key.ends_with('/')) key.pop_back();
  for (const std::string_view version : {"/v1", "/v2"})
    if (key.ends_with(version)) key.resize(key.size() - version.size());
  const std::string host = key.substr(0, key.find('/'));
  return host == kHubKey || host == "registry-1.docker.io" ? "docker.io" + key.substr(host.size()) : key;
}

const Json* object_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_object() ? &*found : nullptr;
}

std::string text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<Credential> login_in(const Json& entry, const std::string& key, const std::string& origin) {
  if (!entry.is_object()) return std::nullopt;
  Credential login{text_in(entry, "username"), text_in(entry, "password"), text_in(entry, "identitytoken"), origin};
  if (const std::string auth = text_in(entry, "auth"); !auth.empty()) {
    // The bytes behind NULs are padding of old dockers.
    const std::string pair = attempt("the login for " + quote(key), [&] { return from_base64(auth); });
    const std::size_t colon = pair.find(':');
    if (colon == std::string::npos) throw usage_error("the login for " + quote(key) + " is no USER:PASSWORD");
    login.user = pair.substr(0, colon);
    login.password = pair.substr(colon + 1);
    while (login.password.ends_with('\0')) login.password.pop_back();
  }
  if (login.user.empty() && login.identity_token.empty()) return std::nullopt;
  return login;
}

bool valid_helper(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

/// What a program writes to `fd` until it closes it, at most kLargestAnswer bytes.
std::string read_until(int fd, Clock::time_point deadline) {
  std::string text;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) throw failure("it did not answer in time");
    pollfd ready{fd, POLLIN, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::min<long>(left, 60'000)));
    if (count < 0 && errno != EINTR) throw system_error("poll");
    if (count <= 0) continue;
    char piece[4096];
    const ssize_t got = ::read(fd, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read");
    if (got == 0) return text;
    text.append(piece, static_cast<std::size_t>(got));
    if (text.size() > kLargestAnswer) throw failure("it answers with more than 64 KiB");
  }
}

}  // namespace

CredentialFile CredentialFile::parse(std::string_view text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  if (!json.is_object()) throw usage_error(origin + " is no JSON object");
  CredentialFile file;
  return attempt(origin, [&] {
    if (const Json* auths = object_in(json, "auths"))
      for (const auto& [key, entry] : auths->items())
        if (auto login = login_in(entry, key, origin)) file.logins.emplace(key_of(key), std::move(*login));
    if (const Json* helpers = object_in(json, "credHelpers"))
      for (const auto& [key, name] : helpers->items())
        if (name.is_string()) file.helpers.emplace(key_of(key), name.get<std::string>());
    file.store = text_in(json, "credsStore");
    return std::move(file);
  });
}

const Credential* CredentialFile::find(const std::string& host, const std::string& repository) const {
  for (std::string key = host + "/" + repository;;) {
    if (const auto found = logins.find(key); found != logins.end()) return &found->second;
    const std::size_t slash = key.rfind('/');
    if (slash == std::string::npos) return nullptr;
    key.resize(slash);
  }
}

Credential parse_helper_answer(std::string_view text, const std::string& origin) {
  const Json json = parse_json(text, "its answer");
  if (!json.is_object()) throw usage_error("its answer is no JSON object");
  Credential login{text_in(json, "Username"), text_in(json, "Secret"), "", origin};
  if (login.password.empty()) throw usage_error("its answer has no Secret");
  if (login.user == "<token>") {
    login.identity_token = std::move(login.password);
    login.user.clear();
    login.password.clear();
  }
  return login;
}

std::vector<fs::path> CredentialStore::usual_files(const fs::path& run) {
  if (const std::string only = variable("REGISTRY_AUTH_FILE"); !only.empty()) return {only};
  const std::string runtime = variable("XDG_RUNTIME_DIR"), home = variable("HOME"),
                    config = variable("XDG_CONFIG_HOME"), docker = variable("DOCKER_CONFIG");
  std::vector<fs::path> files;
  if (!runtime.empty())
    files.push_back(fs::path(runtime) / "containers/auth.json");
  else
    files.push_back(run / "containers" / std::to_string(::geteuid()) / "auth.json");
  if (!config.empty())
    files.push_back(fs::path(config) / "containers/auth.json");
  else if (!home.empty())
    files.push_back(fs::path(home) / ".config/containers/auth.json");
  if (!docker.empty())
    files.push_back(fs::path(docker) / "config.json");
  else if (!home.empty())
    files.push_back(fs::path(home) / ".docker/config.json");
  return files;
}

std::optional<Credential> CredentialStore::ask(const std::string& helper, const std::string& host) const {
  const std::string program = "docker-credential-" + helper;
  if (!valid_helper(helper)) throw usage_error("credential helper " + quote(helper) + " has no valid name");
  return attempt("cannot get the login for " + host + " from " + program, [&]() -> std::optional<Credential> {
    UniqueFd input(::memfd_create("host", MFD_CLOEXEC));
    if (!input) throw system_error("memfd_create");
    write_all(input.get(), host == "docker.io" ? kHubServer : host);
    if (::lseek(input.get(), 0, SEEK_SET) != 0) throw system_error("seek");
    auto [out, in] = make_pipe();
    ChildProcess child = ChildProcess::spawn({.argv = {program, "get"},
                                              .environment = environment_for_child(),
                                              .directory = {},
                                              .descriptors = {{input.get(), 0}, {in.get(), 1}}});
    in.reset();
    const auto deadline = Clock::now() + helper_timeout_;
    const std::string text = read_until(out.get(), deadline);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    const auto status = child.wait_for(std::max(left, std::chrono::milliseconds(1)));
    if (!status) throw failure("it did not end within " + format_duration(helper_timeout_));
    if (!status->ok()) {
      // The protocol has no code for this, only words.
      if (text.find("not found") != std::string::npos) return std::nullopt;
      throw failure("it failed with " + status->str() + (text.empty() ? "" : ": " + quote(text.substr(0, 200))));
    }
    return parse_helper_answer(text, program);
  });
}

std::optional<Credential> CredentialStore::find(const std::string& host, const std::string& repository) {
  const std::lock_guard guard(mutex_);
  const std::string key = host + "/" + repository;
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  std::optional<Credential> login;
  for (const fs::path& path : files_) {
    std::error_code unknown;
    if (!fs::exists(path, unknown)) continue;
    const CredentialFile file = CredentialFile::parse(read_file(path, kLargestFile), path.native());
    if (const auto helper = file.helpers.find(host); helper != file.helpers.end())
      login = ask(helper->second, host);
    else if (const Credential* found = file.find(host, repository))
      login = *found;
    else if (!file.store.empty())
      login = ask(file.store, host);
    if (login) break;
  }
  known_.emplace(key, login);
  return login;
}

}  // namespace dsec::registry
