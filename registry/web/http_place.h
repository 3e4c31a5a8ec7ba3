#pragma once

#include "registry/oci/credentials.h"
#include "registry/web/object_place.h"

namespace dsec::registry {

/// A directory registry behind a static web server: nothing is listed but what its catalogue names. A server that wants
/// a password is given the login that docker and podman keep for its host.
class HttpPlace : public ObjectPlace {
 public:
  /// `base` is a URL without '/' at its end. Throws Error (Usage) when there is no registry.
  HttpPlace(const Config& config, http::ClientOptions options, std::string base);

  /// Throws Error when the registry has no catalogue.
  std::vector<std::string> names(const std::string& prefix) const override;

 protected:
  http::Url url(const std::string& name) const override;
  http::Answer send(http::Request request, http::Download* download) const override;
  Error refusal(const http::Request& request, const http::Answer& answer) const override;

 private:
  /// Value of the Authorization header, once the server has asked for one; empty when there is no login.
  std::string log_in(const http::Request& request, const http::Answer& answer) const;

  mutable WebAccess access_;
  const std::string base_;
  mutable CredentialStore credentials_;
  mutable std::mutex mutex_;
  mutable std::string authorization_;
};

}  // namespace dsec::registry
