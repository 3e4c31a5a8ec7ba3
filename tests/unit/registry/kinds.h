#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tests/support/http_server.h"
#include "tests/unit/registry/registry_fixture.h"
#include "tests/unit/registry/web/web_servers.h"

namespace dsec::registry::test {

/// An OCI registry in memory, as far as one that behaves goes. Copies share what they hold.
class MemoryRegistry {
 public:
  struct State {
    using Contents = std::map<std::string, std::string>;  ///< by tag or digest
    std::map<std::string, Contents> blobs, manifests;     ///< by repository
    bool deletes = true;                                  ///< manifests may be deleted
    bool catalogue = true;                                ///< it is shown
    bool referrers = false;                               ///< it keeps lists of what refers to a manifest
    /// Called with each request before it is answered.
    std::function<void(const dsec::test::Seen&)> before;
  };

  dsec::test::Reply operator()(const dsec::test::Seen& seen) const;
  State& state() const { return *state_; }

 private:
  dsec::test::Reply upload(const dsec::test::Seen& seen, const std::string& repository) const;
  dsec::test::Reply remove(const std::string& repository, const std::string& name) const;
  dsec::test::Reply tags(const std::string& repository) const;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// One of each: `address` is published to, `readable` is where readers of the same registry go.
struct Kinds {
  Scratch from, to;
  MemoryRegistry registry;
  MemoryBucket bucket{"layers"};
  dsec::test::HttpServer oci{registry}, web{WebFolder(from.registry_path())}, s3{bucket};
  Variables variables{
      {{"AWS_ENDPOINT_URL", s3.url("")}, {"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}}};
  RegistryAddress address, readable;
  Progress quiet;

  /// "file", "oci", "https" or "s3"; `place` tells several of a kind apart.
  explicit Kinds(const std::string& kind);
  RegistryAddress another(const std::string& kind, const std::string& place) const;
};

}  // namespace dsec::registry::test
