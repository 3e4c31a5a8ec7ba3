#include "registry/hosts.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/variables.h"
#include "registry/oci/reference.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLargestCertificates = 4 << 20;

/// Where docker and podman look for what belongs to one host (containers-certs.d(5)).
std::vector<fs::path> certificate_directories(const std::string& authority) {
  std::vector<fs::path> directories;
  if (const std::string home = variable("HOME"); !home.empty())
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

Hosts::Hosts(const Config& config) : hosts_(config.hosts) {
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

http::ClientOptions Hosts::with_trust(http::ClientOptions options) {
  options.trust = [this](const std::string& authority) { return trust(authority); };
  return options;
}

const HostEntry* Hosts::entry(const std::string& host) const {
  const auto found = std::find_if(hosts_.begin(), hosts_.end(), [&](const HostEntry& e) { return e.host == host; });
  return found == hosts_.end() ? nullptr : &*found;
}

http::HostTrust Hosts::trust(const std::string& authority) {
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

}  // namespace dsec::registry
