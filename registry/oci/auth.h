#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/http/client.h"
#include "registry/oci/challenge.h"
#include "registry/oci/credentials.h"

namespace dsec::registry {

/// What a request is about: whose login it needs, and what a token has to allow.
struct AccessRequest {
  std::string host;                 ///< of the registry, as people write it
  std::string repository;           ///< decides between logins for parts of a host
  std::vector<std::string> scopes;  ///< "repository:library/debian:pull"; in a token's own words
};

/// A token as an authorization server hands it out.
struct Token {
  std::string text;
  std::chrono::seconds lifetime{60};
  /// Throws Error.
  static Token parse(std::string_view json);
};

/// Value of an Authorization header.
std::string basic_authorization(const Credential& login);

/// Logs in to registries as they ask for it: not at all, by name and password, or by tokens, which are kept until
/// shortly before they end. Any number of threads; one fetches what all wait for.
class Authenticator {
 public:
  Authenticator(http::Client& client, CredentialStore& credentials) : client_(client), credentials_(credentials) {}

  /// Value of the Authorization header; empty while the host has not asked for any.
  std::string header(const AccessRequest& access);
  /// After a 401: takes in what the host asks for. `sent` is the header that was refused. Throws Error when there is
  /// nothing else to try.
  void refused(const AccessRequest& access, const std::string& sent, const http::Answer& answer);

  /// What to try when a host refuses: how to log in, and where logins are looked for.
  std::string login_hint(const std::string& host) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    std::string header;
    Clock::time_point until;
  };
  std::string fetch(const AccessRequest& access, const Challenge& challenge);
  Error login_error(const AccessRequest& access, const std::string& why) const;

  http::Client& client_;
  CredentialStore& credentials_;
  std::mutex mutex_;
  std::map<std::string, Challenge> asked_;                       // by host
  std::map<std::pair<std::string, std::string>, Kept> headers_;  // by host and scopes
};

}  // namespace dsec::registry
