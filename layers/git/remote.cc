#include "layers/git/remote.h"

#include <git2.h>

#include <array>
#include <exception>
#include <vector>

#include "core/base/files.h"
#include "layers/git/credentials.h"
#include "layers/git/libgit.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kSchemes = {"https", "http", "ssh", "git"};

// What stands before "://", or before git's "::".
std::string_view scheme_of(std::string_view location) {
  const auto end = location.find(':');
  if (end == std::string_view::npos || end == 0) return {};
  const std::string_view scheme = location.substr(0, end);
  for (const char c : scheme)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '+' && c != '-' && c != '.') return {};
  return location.substr(end).starts_with("://") || location.substr(end).starts_with("::") ? scheme
                                                                                           : std::string_view();
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_value(text[i + 1]) << 4 | hex_value(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

void refuse_commands(const std::string& url) {
  const std::string_view scheme = scheme_of(url);
  for (const std::string_view good : kSchemes)
    if (url.starts_with(std::string(good) + "://")) return;
  if (scp_colon(url)) return;
  throw usage_error("dsec does not fetch git repositories over " + quote(std::string(scheme) + ":"))
      .hint("https://, http://, ssh://, git://, USER@HOST:PATH, or a path: other transports of git run programs");
}

// One connection's search for credentials: each kind is offered once, and remembered for the message.
struct Connection {
  RemotePlace place;
  Progress& progress;
  std::vector<std::string> tried;
  bool agent_asked = false, netrc_asked = false, helpers_read = false;
  std::vector<std::string> helpers;
  std::exception_ptr failed;

  std::optional<Login> next_login() {
    if (!netrc_asked) {
      netrc_asked = true;
      tried.push_back("netrc");
      if (auto login = login_from_netrc(place)) return login;
    }
    if (!helpers_read) {
      helpers_read = true;
      helpers = credential_helpers(place);
    }
    while (!helpers.empty()) {
      const std::string helper = helpers.front();
      helpers.erase(helpers.begin());
      tried.push_back("the credential helper " + quote(helper));
      if (auto login = ask_helper(helper, place)) return login;
    }
    return std::nullopt;
  }
};

int give_credential(git_credential** out, const char* url, const char* user_of_url, unsigned int allowed,
                    void* payload) {
  auto& connection = *static_cast<Connection*>(payload);
  try {
    connection.place = RemotePlace::of(url);
    const std::string user = user_of_url ? user_of_url : "git";
    if (user_of_url) connection.place.user = user_of_url;
    if (allowed & GIT_CREDENTIAL_USERNAME) return git_credential_username_new(out, user.c_str());
    if ((allowed & GIT_CREDENTIAL_SSH_KEY) && !connection.agent_asked) {
      connection.agent_asked = true;
      connection.tried.push_back("the ssh agent");
      return git_credential_ssh_key_from_agent(out, user.c_str());
    }
    if (allowed & GIT_CREDENTIAL_USERPASS_PLAINTEXT) {
      if (const auto login = connection.next_login())
        return git_credential_userpass_plaintext_new(out, login->user.c_str(), login->password.c_str());
    }
    git_error_set_str(GIT_ERROR_CALLBACK, "the server wants credentials, and none that dsec found were accepted");
    return GIT_EAUTH;
  } catch (...) {
    connection.failed = std::current_exception();
    return GIT_EUSER;
  }
}

int show_progress(const git_indexer_progress* stats, void* payload) {
  auto& connection = *static_cast<Connection*>(payload);
  connection.progress.advance("fetch " + connection.place.host, stats->received_bytes, 0);
  return 0;
}

Error fetch_error(const std::string& url, const Connection& connection, int code) {
  Error error = libgit_error("fetch " + without_credentials(url));
  if (error.message().find("hostkey") != std::string::npos)
    return error.hint("ssh " + connection.place.host.substr(0, connection.place.host.find(':')) +
                      " once: it adds the server's key to ~/.ssh/known_hosts");
  if (code != GIT_EAUTH && connection.tried.empty()) return error;
  std::string tried;
  for (const std::string& way : connection.tried) tried += (tried.empty() ? "" : ", ") + way;
  return error.hint("credentials tried: " + (tried.empty() ? std::string("none") : tried))
      .hint("ssh-add for ssh; a line in ~/.netrc or a credential.helper in ~/.gitconfig for https");
}

int fetch(git_remote* remote, std::vector<std::string> specs, Connection& connection) {
  git_fetch_options options;
  check_git(git_fetch_options_init(&options, GIT_FETCH_OPTIONS_VERSION), "prepare to fetch");
  options.callbacks.credentials = give_credential;
  options.callbacks.transfer_progress = show_progress;
  options.callbacks.payload = &connection;
  options.download_tags = GIT_REMOTE_DOWNLOAD_TAGS_NONE;  // the specs name what is wanted
  options.update_fetchhead = 0;
  options.proxy_opts.type = GIT_PROXY_AUTO;
  std::vector<char*> pointers;
  pointers.reserve(specs.size());
  for (std::string& spec : specs) pointers.push_back(spec.data());
  const git_strarray list{pointers.data(), pointers.size()};
  const int code = git_remote_fetch(remote, &list, &options, "");
  if (connection.failed) std::rethrow_exception(connection.failed);
  return code;
}

// HEAD of the clone follows the server's, so that a URL without a revision means what git clone would take.
void follow_head(git_remote* remote, git_repository* repository) {
  git_buf name = GIT_BUF_INIT;
  if (git_remote_default_branch(&name, remote) == 0) git_repository_set_head(repository, name.ptr);
  git_buf_dispose(&name);
}

bool has_revision(git_repository* repository, const std::string& revision) {
  git_object* found = nullptr;
  const bool there = git_revparse_single(&found, repository, revision.c_str()) == 0;
  git_object_free(found);
  return there;
}

}  // namespace

bool is_remote(std::string_view location) {
  const std::string_view scheme = scheme_of(location);
  return (!scheme.empty() && scheme != "file") || scp_colon(location).has_value();
}

std::optional<std::size_t> scp_colon(std::string_view location) {
  if (!scheme_of(location).empty()) return std::nullopt;
  const auto colon = location.find(':');
  const auto at = location.find('@');
  const auto slash = location.find('/');
  if (colon == std::string_view::npos || at == std::string_view::npos || at > colon || slash < colon)
    return std::nullopt;
  return colon;
}

fs::path local_path(std::string_view location) {
  if (!location.starts_with("file://")) return fs::path(location);
  std::string_view path = location.substr(7);
  if (path.starts_with("localhost/")) path.remove_prefix(9);
  if (!path.starts_with('/'))
    throw usage_error("a file: URL names a file of this host, which " + quote(location) + " does not")
        .hint("file:///PATH");
  return percent_decoded(path);
}

std::string without_credentials(std::string_view url) {
  const auto scheme = url.find("://");
  if (scheme == std::string_view::npos) return std::string(url);
  const auto start = scheme + 3;
  const auto slash = std::min(url.find('/', start), url.size());
  const auto at = url.substr(0, slash).rfind('@');
  std::string plain(url.substr(0, start));
  plain += url.substr(at != std::string_view::npos && at >= start ? at + 1 : start);
  return plain.substr(0, plain.find('?'));
}

void fetch_repository(const std::string& url, const std::string& revision, bool all, const fs::path& place,
                      Progress& progress) {
  refuse_commands(url);
  start_libgit2();
  git_repository* opened = nullptr;
  check_git(git_repository_init(&opened, place.c_str(), 1), "make a repository in " + quote(place.native()));
  const GitPtr<git_repository> repository(opened);
  git_remote* remote_opened = nullptr;
  check_git(git_remote_create_anonymous(&remote_opened, opened, url.c_str()),
            "use the URL " + without_credentials(url));
  const GitPtr<git_remote> remote(remote_opened);

  Connection connection{.place = RemotePlace::of(url), .progress = progress};
  const std::string step = "fetch " + connection.place.host;
  progress.begin(step);
  std::vector<std::string> specs = {"+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"};
  if (all) specs = {"+refs/*:refs/*"};
  if (const int code = fetch(remote.get(), specs, connection); code < 0) throw fetch_error(url, connection, code);
  follow_head(remote.get(), opened);
  if (!has_revision(opened, revision) && ObjectId::valid_hex(revision)) {
    // No branch reaches it: some servers give a commit by its id, as they do for pull requests.
    Connection again{.place = RemotePlace::of(url), .progress = progress};
    if (const int code = fetch(remote.get(), {"+" + revision + ":refs/dsec/wanted"}, again); code < 0)
      throw fetch_error(url, again, code).context("no branch or tag of the repository reaches " + revision);
    git_reference_remove(opened, "refs/dsec/wanted");  // the id names it from here on
  }
  progress.end(step, "");
}

}  // namespace dsec::layers
