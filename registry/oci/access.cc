#include "registry/oci/access.h"

#include "core/base/error.h"

namespace dsec::registry {
namespace fs = std::filesystem;

OciAccess::OciAccess(const Config& config, std::function<void(const std::string&)> notice)
    : OciAccess(config, {.notice = std::move(notice)}, CredentialStore::usual_files()) {}

OciAccess::OciAccess(const Config& config, http::ClientOptions options, std::vector<fs::path> credential_files)
    : hosts_(config),
      credentials_(std::move(credential_files)),
      client_(hosts_.with_trust(std::move(options))),
      authenticator_(client_, credentials_) {}

OciClient::Scheme OciAccess::scheme(const std::string& host) {
  const HostEntry* const known = hosts_.entry(host);
  if (known && known->plain_http) return *known->plain_http ? OciClient::Scheme::Http : OciClient::Scheme::Https;
  const http::HostTrust own = hosts_.trust(host);
  const bool plain =
      http::Url::parse("http://" + host).is_loopback() && own.ca_pem.empty() && own.client_certificate.empty();
  return plain ? OciClient::Scheme::Http : OciClient::Scheme::Https;
}

OciClient& OciAccess::at(const std::string& host) {
  const OciClient::Scheme chosen = scheme(host);
  const std::lock_guard guard(mutex_);
  std::unique_ptr<OciClient>& client = clients_[host];
  if (!client) client = std::make_unique<OciClient>(client_, authenticator_, host, chosen);
  return *client;
}

std::vector<std::string> OciAccess::mirrors(const std::string& host) const {
  const HostEntry* const known = hosts_.entry(host);
  return known ? known->mirrors : std::vector<std::string>();
}

}  // namespace dsec::registry
