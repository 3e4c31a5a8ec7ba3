#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "registry/hosts.h"
#include "registry/oci/client.h"

namespace dsec::registry {

/// What one command talks to registries with: connections, logins and what is configured about hosts.
class OciAccess {
 public:
  /// `notice` is told what a person may want to know: who has to be waited for, and why.
  OciAccess(const Config& config, std::function<void(const std::string&)> notice);
  OciAccess(const Config& config, http::ClientOptions options, std::vector<std::filesystem::path> credential_files);

  /// The client of a host, which lives as long as this object. Any number of threads.
  OciClient& at(const std::string& host);
  /// "host[/path]" of those that are asked before a host for its images.
  std::vector<std::string> mirrors(const std::string& host) const;
  void cancel() { client_.cancel(); }

 private:
  OciClient::Scheme scheme(const std::string& host);

  Hosts hosts_;
  std::mutex mutex_;
  CredentialStore credentials_;
  http::Client client_;
  Authenticator authenticator_;
  std::map<std::string, std::unique_ptr<OciClient>> clients_;
};

}  // namespace dsec::registry
