#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsec::layers {

struct Login {
  std::string user, password;
};

/// The parts of a URL that credentials are looked up by.
struct RemotePlace {
  std::string scheme;  ///< "https"
  std::string host;    ///< with ":port" when the URL has one
  std::string path;    ///< without the leading '/'
  std::string user;    ///< of the URL; may be empty

  static RemotePlace of(std::string_view url);
};

/// The login for `host` in a netrc file (`machine`, `default`, `login`, `password`; macdef bodies are skipped).
std::optional<Login> find_in_netrc(std::string_view netrc, std::string_view host, std::string_view user);

/// $NETRC, else ~/.netrc.
std::optional<Login> login_from_netrc(const RemotePlace& place);

/// The credential helpers that this user's own git configuration names for the place (credential.helper and
/// credential.<url>.helper of /etc/gitconfig, ~/.gitconfig and $XDG_CONFIG_HOME/git/config), in order; an empty value
/// clears the list, as in git. A source repository's configuration never counts.
std::vector<std::string> credential_helpers(const RemotePlace& place);

/// Asks one helper (git-credential(1)): "!COMMAND" through the shell, a path, or NAME as git-credential-NAME. Empty
/// when it knows nothing or cannot be run.
std::optional<Login> ask_helper(const std::string& helper, const RemotePlace& place);

}  // namespace dsec::layers
