#include "registry/oci/access.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/oci/reference.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLargestCertificates = 4 << 20;

/// Where docker and podman look for what belongs to one host (containers-certs.d(5)).
std::vector<fs::path> certificate_directories(const std::string& authority) {
  std::vector<fs::path> directories;
  if (const char* home = std::getenv("HOME"); home && *home)
    directories.push_back(fs::path(home) / ".config/containers/certs.d" / authority);
  directories.push_back(fs::path("/etc/containers/certs.d") / authority);
  directories.push_back(fs::path("/etc/docker/certs.d") / authority);
  return directories;
}

void add_certificates(http::HostTrust& trust, const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory, error)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    if (file.extension() == ".crt") trust.ca_pem += read_file(file, kLargestCertificates) + "\n";
    fs::path key = file;
    key.replace_extension(".key");
    if (file.extension() != ".cert" || !fs::exists(key, error)) continue;
    trust.client_certificate = file.native();
    trust.client_key = key.native();
  }
}

}  // namespace

OciAccess::OciAccess(const Config& config, std::function<void(const std::string&)> notice)
    : OciAccess(config, {.notice = std::move(notice)}, CredentialStore::usual_files()) {}

OciAccess::OciAccess(const Config& config, http::ClientOptions options, std::vector<fs::path> credential_files)
    : hosts_(config.hosts),
      credentials_(std::move(credential_files)),
      client_(with_trust(std::move(options))),
      authenticator_(client_, credentials_) {
  for (const HostEntry& host : hosts_) {
    if (!valid_authority(host.host)) throw usage_error("'hosts' of config.yaml: " + quote(host.host) + " is no host");
    for (const std::string& mirror : host.mirrors) {
      const std::size_t slash = mirror.find('/');
      if (!valid_authority(mirror.substr(0, slash)) ||
          (slash != std::string::npos && !valid_repository(mirror.substr(slash + 1))))
        throw usage_error("'hosts' of config.yaml: " + quote(mirror) + " is no mirror").hint("HOST or HOST/PATH");
    }
  }
}

http::ClientOptions OciAccess::with_trust(http::ClientOptions options) {
  options.trust = [this](const std::string& authority) { return trust(authority); };
  return options;
}

const HostEntry* OciAccess::entry(const std::string& host) const {
  const auto found = std::find_if(hosts_.begin(), hosts_.end(), [&](const HostEntry& e) { return e.host == host; });
  return found == hosts_.end() ? nullptr : &*found;
}

http::HostTrust OciAccess::trust(const std::string& authority) {
  const std::lock_guard guard(mutex_);
  if (const auto known = trusts_.find(authority); known != trusts_.end()) return known->second;
  http::HostTrust trust;
  if (const HostEntry* host = entry(authority)) {
    trust.plain_http = host->plain_http.value_or(false);
    if (!host->ca.empty()) trust.ca_pem = read_file(host->ca, kLargestCertificates) + "\n";
  }
  for (const fs::path& directory : certificate_directories(authority)) add_certificates(trust, directory);
  return trusts_.emplace(authority, std::move(trust)).first->second;
}

OciClient::Scheme OciAccess::scheme(const std::string& host) {
  const HostEntry* const known = entry(host);
  if (known && known->plain_http) return *known->plain_http ? OciClient::Scheme::Http : OciClient::Scheme::Https;
  const http::HostTrust own = trust(host);
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
  const HostEntry* const known = entry(host);
  return known ? known->mirrors : std::vector<std::string>();
}

}  // namespace dsec::registry
