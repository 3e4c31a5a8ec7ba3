#pragma once

#include "registry/web/object_place.h"

namespace dsec::registry {

/// A directory registry behind a static web server: nothing is listed but what its catalogue names.
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
  mutable WebAccess access_;
  const std::string base_;
};

}  // namespace dsec::registry
