#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::registry {

/// How a user logs in to a registry.
struct Credential {
  std::string user, password;
  std::string identity_token;  ///< instead of the two: what an OAuth2 login left
  std::string origin;          ///< for messages: the file or the helper
  bool operator==(const Credential&) const = default;
};

/// ~/.docker/config.json or containers/auth.json (containers-auth.json(5)).
struct CredentialFile {
  std::map<std::string, Credential> logins;    ///< "host[/path]", without scheme
  std::map<std::string, std::string> helpers;  ///< host: name of its credential helper
  std::string store;                           ///< helper for all other hosts; may be empty

  /// Throws Error naming `origin`; entries that hold no login are left out.
  static CredentialFile parse(std::string_view text, const std::string& origin);
  /// The nearest of "host/a/b", "host/a", "host".
  const Credential* find(const std::string& host, const std::string& repository) const;
};

/// What `docker-credential-NAME get` prints. Throws Error.
Credential parse_helper_answer(std::string_view text, const std::string& origin);

/// The logins of this user, where docker and podman keep them. Any number of threads.
class CredentialStore {
 public:
  /// In this order: $REGISTRY_AUTH_FILE, or else $XDG_RUNTIME_DIR/containers/auth.json (without that variable
  /// `run`/containers/UID/auth.json, as podman has it for root),
  /// ~/.config/containers/auth.json and $DOCKER_CONFIG or ~/.docker, config.json.
  static std::vector<std::filesystem::path> usual_files(const std::filesystem::path& run = "/run");

  explicit CredentialStore(std::vector<std::filesystem::path> files = usual_files(),
                           std::chrono::milliseconds helper_timeout = std::chrono::seconds(30))
      : files_(std::move(files)), helper_timeout_(helper_timeout) {}

  /// Empty when there is none. Throws Error for a file or helper that does not say what it should.
  std::optional<Credential> find(const std::string& host, const std::string& repository);
  const std::vector<std::filesystem::path>& files() const noexcept { return files_; }

 private:
  std::optional<Credential> ask(const std::string& helper, const std::string& host) const;

  const std::vector<std::filesystem::path> files_;
  const std::chrono::milliseconds helper_timeout_;
  std::mutex mutex_;
  std::map<std::string, std::optional<Credential>> known_;  // by host and repository
};

}  // namespace dsec::registry
