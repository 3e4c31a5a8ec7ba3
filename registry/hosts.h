#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/http/client.h"

namespace dsec::registry {

/// What is particular about hosts: config.yaml, and the folders of certificates where docker and podman look
/// (containers-certs.d(5)). Any number of threads.
class Hosts {
 public:
  /// Throws Error (Usage) for names in `hosts` that are none.
  explicit Hosts(const Config& config);

  /// Null when config.yaml says nothing about it.
  const HostEntry* entry(const std::string& host) const;
  http::HostTrust trust(const std::string& authority);
  /// With trust() for the hosts that are asked; this object must outlive the client.
  http::ClientOptions with_trust(http::ClientOptions options);

 private:
  const std::vector<HostEntry> hosts_;
  std::mutex mutex_;
  std::map<std::string, http::HostTrust> trusts_;
};

}  // namespace dsec::registry
