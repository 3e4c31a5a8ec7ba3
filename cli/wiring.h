#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/engine/blob_loader.h"
#include "core/engine/home.h"
#include "core/engine/layer_mounter.h"
#include "core/engine/local_engine.h"
#include "core/engine/remote_image.h"

namespace dsec::registry {
class LocalStore;
}
namespace dsec::runners {
struct HostReport;
}

namespace dsec::cli {

/// What stands behind the commands. The only place that knows every type: each part is made when it is first asked
/// for, with the parts that it needs, so that a command touches no more than it must. One thread.
class Wiring {
 public:
  /// `home`: empty is the one that the environment names.
  explicit Wiring(std::filesystem::path home = {});
  ~Wiring();
  Wiring(const Wiring&) = delete;
  Wiring& operator=(const Wiring&) = delete;

  const engine::Home& home();
  bool home_used() const noexcept;
  registry::LocalStore& store();
  /// Whether this process has brought blobs into the store.
  bool store_has_grown() const noexcept;
  /// The same behind the port, for commands that call layers/.
  engine::LayerStore& layer_store();
  /// Whether some of its data is loaded while it is used, since it is not here.
  bool is_on_demand(const engine::StoredLayer& layer);
  /// What has been loaded of layers: "bytes" and "fetched", or null when nothing of them is loaded on demand here.
  Json on_demand_use(std::span<const Digest> layers);
  /// Images of registries, for `docker:` sources.
  engine::OpenRemoteImage images();

  /// What builds keep to be faster: removes what was not used for long, or (`all`) what nobody uses now. A dry run only
  /// tells of caches of RUN --mount=type=cache. What could not be removed is added to `problems`.
  struct PrunedCache {
    std::string id;
    std::uint64_t bytes;
  };
  std::vector<PrunedCache> prune_build_caches(bool all, bool dry_run, std::vector<std::string>& problems);
  /// What serves blobs that are loaded on demand.
  engine::BlobLoader& loader();
  engine::LayerMounter& mounter();
  engine::LayerPacker& packer();
  engine::Runners runners();
  /// That of this host.
  engine::LocalEngine& local_engine();

  /// From here on engine() is that of a context; empty: of this host, which stays so when nothing is said. Throws Error
  /// (Usage) with near names.
  void use_context(const std::string& name);
  /// Empty: this host.
  const std::string& context() const noexcept { return context_; }
  /// Whose sandboxes are meant.
  engine::Engine& engine();

  /// What a system in a machine needs to have dsec's agent: the files of both programs.
  struct GuestPrograms {
    std::string agent, helper;
  };
  static GuestPrograms guest_programs();

  /// What dsec finds of this host; makes nothing.
  runners::HostReport examine_host();

 private:
  struct Parts;
  const std::filesystem::path place_;
  std::unique_ptr<Parts> parts_;
  std::string context_;
};

}  // namespace dsec::cli
