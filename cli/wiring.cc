#include "cli/wiring.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/progress.h"
#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "core/remote/address.h"
#include "core/remote/remote_engine.h"
#include "core/remote/token.h"
#include "layers/branch/packer.h"
#include "layers/build/cache_mounts.h"
#include "layers/build/downloads.h"
#include "layers/build/run_mounts.h"
#include "layers/build/step_cache.h"
#include "layers/disk/machine_disks.h"
#include "layers/erofs/mkfs.h"
#include "layers/mount/layer_mounter.h"
#include "registry/gc/leftovers.h"
#include "registry/loader/loader_client.h"
#include "registry/oci/remote_image.h"
#include "registry/pull.h"
#include "registry/store/local_store.h"
#include "runners/container/container_runner.h"
#include "runners/container/program.h"
#include "runners/doctor.h"
#include "runners/vm/full/full_runner.h"
#include "runners/vm/microvm_runner.h"

namespace dsec::cli {
namespace {

void examine_mkfs(runners::HostFacts& facts) {
  try {
    const layers::Mkfs mkfs = layers::Mkfs::find();
    facts.mkfs_erofs = mkfs.version + ", " + mkfs.program.native();
    if (layers::fitness_of_mkfs(mkfs.version) == layers::MkfsFitness::Old)
      facts.mkfs_erofs += " (before 1.9.3: the order of extended attributes in a layer depends on that of the input)";
  } catch (const Error& error) {
    facts.mkfs_erofs_problem = error.message();
  }
}

// What the loader of this home, if one runs, could not load.
void add_loader(std::vector<runners::HostCheck>& checks) {
  using runners::CheckStatus;
  const auto add = [&](CheckStatus status, std::string found, std::string mend = "") {
    checks.push_back({"storage", "layers on demand", status, std::move(found), std::move(mend)});
  };
  try {
    const Json status = registry::loader_status(engine::Home::place());
    if (status.is_null()) return add(CheckStatus::Ok, "none is in use");
    std::uint64_t fetched = 0, bytes = 0;
    for (const Json& blob : status["blobs"]) {
      fetched += json_u64_or(blob, "fetched", 0);
      bytes += json_u64_or(blob, "bytes", 0);
    }
    add(CheckStatus::Ok, format_size(fetched) + " of " + format_size(bytes) + " fetched");
    for (const Json& problem : status["problems"])
      add(CheckStatus::Warn,
          json_string(problem, "what") + " (" + std::to_string(json_u64(problem, "count")) + " times, last " +
              json_string(problem, "last") + ")",
          "dsec registry check, and whether the registry can be reached: sandboxes that need it get errors");
  } catch (const Error& error) {
    add(CheckStatus::Warn, error.message());
  }
}

}  // namespace

// In this order: what is made later stands on what was made before, and goes first.
struct Wiring::Parts {
  std::optional<engine::Home> home;
  std::unique_ptr<registry::LocalStore> store;
  std::unique_ptr<engine::BlobLoader> loader;
  std::unique_ptr<engine::LayerMounter> mounter;
  std::unique_ptr<engine::LayerPacker> packer;
  std::unique_ptr<engine::MachineDisks> disks;
  std::unique_ptr<engine::Runner> container, microvm, fullvm;
  std::unique_ptr<engine::LocalEngine> engine;
  std::unique_ptr<engine::Engine> remote;
};

Wiring::Wiring(std::filesystem::path home) : place_(std::move(home)), parts_(std::make_unique<Parts>()) {}
Wiring::~Wiring() = default;

const engine::Home& Wiring::home() {
  if (!parts_->home) parts_->home = place_.empty() ? engine::Home::open() : engine::Home::open(place_);
  return *parts_->home;
}

bool Wiring::home_used() const noexcept { return parts_->home.has_value(); }

registry::LocalStore& Wiring::store() {
  if (!parts_->store) {
    parts_->store = registry::open_store(home());
    parts_->store->set_fetch([&store = *parts_->store](const registry::OnDemandBlob& blob) {
      const auto progress = make_progress(false);
      registry::fetch_whole(store, blob, *progress);
    });
  }
  return *parts_->store;
}

bool Wiring::store_has_grown() const noexcept { return parts_->store && parts_->store->has_grown(); }

engine::LayerStore& Wiring::layer_store() { return store(); }

bool Wiring::is_on_demand(const engine::StoredLayer& layer) { return store().is_on_demand(layer.manifest); }

Json Wiring::on_demand_use(std::span<const Digest> layers) {
  return context_.empty() ? registry::on_demand_use(store(), layers) : Json(nullptr);
}

engine::OpenRemoteImage Wiring::images() { return registry::remote_images(); }

std::vector<Wiring::PrunedCache> Wiring::prune_build_caches(bool all, bool dry_run,
                                                            std::vector<std::string>& problems) {
  const std::filesystem::path cache = home().cache();
  if (!dry_run) layers::Downloads::prune(cache / "downloads", all);
  if (!dry_run) layers::remove_stale_secrets();
  if (!dry_run && all) layers::StepCache::forget_all(cache / "build");
  std::vector<PrunedCache> pruned;
  for (auto& entry : layers::CacheMounts(cache / "mounts").prune(all, dry_run, registry::allocated_bytes, problems))
    pruned.push_back({std::move(entry.id), entry.bytes});
  return pruned;
}

engine::BlobLoader& Wiring::loader() {
  if (!parts_->loader)
    parts_->loader = registry::make_blob_loader(home(), [this] { return runners::open_keepers_procs(home()); });
  return *parts_->loader;
}

engine::LayerMounter& Wiring::mounter() {
  if (!parts_->mounter) parts_->mounter = layers::make_layer_mounter(home(), store(), &loader());
  return *parts_->mounter;
}

engine::LayerPacker& Wiring::packer() {
  if (!parts_->packer) parts_->packer = layers::make_layer_packer(store());
  return *parts_->packer;
}

engine::Runners Wiring::runners() {
  // Under another name, or replaced since, it is none that a keeper could execute: then gc removes what it would have.
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (!parts_->container) parts_->container = runners::make_container_runner(home(), program);
  if (!parts_->disks) parts_->disks = layers::make_machine_disks();
  if (!parts_->microvm)
    parts_->microvm = runners::make_microvm_runner(home(), *parts_->container, *parts_->disks, program);
  if (!parts_->fullvm)
    parts_->fullvm = runners::make_full_runner(home(), *parts_->container, *parts_->microvm, program);
  return {{"container", *parts_->container},
          {"fncall", *parts_->container},
          {"microvm", *parts_->microvm},
          {"fullvm", *parts_->fullvm}};
}

engine::LocalEngine& Wiring::local_engine() {
  if (!parts_->engine) parts_->engine = engine::make_local_engine(home(), store(), mounter(), packer(), runners());
  return *parts_->engine;
}

void Wiring::use_context(const std::string& name) {
  parts_->remote.reset();
  context_ = name == kLocalContext ? "" : name;
  if (context_.empty()) return;
  const Config config = Config::load();
  std::vector<std::string> known = {kLocalContext};
  for (const ContextEntry& entry : config.contexts) {
    known.push_back(entry.name);
    if (entry.name != context_) continue;
    remote::EdgePlace place{.context = context_, .address = remote::Address::parse(entry.url), .token = {}};
    if (!entry.token_file.empty()) place.token = remote::read_token(entry.token_file);
    parts_->remote = remote::make_remote_engine(std::move(place));
    return;
  }
  Error error = usage_error("there is no context " + quote(context_));
  for (const std::string& near : nearest_names(context_, known)) error.hint("--context " + near);
  throw std::move(error).hint("dsec context ls");
}

engine::Engine& Wiring::engine() {
  if (parts_->remote) return *parts_->remote;
  return local_engine();
}

Wiring::GuestPrograms Wiring::guest_programs() {
  constexpr std::uint64_t kMost = 64ull << 20;
  const auto read = [](const char* name) { return read_all(runners::open_own_program(name).get(), kMost); };
  return {read("dsec-init"), read("dsec-guest")};
}

runners::HostReport Wiring::examine_host() {
  runners::HostReport report =
      runners::judge_host(runners::examine_host({.home = engine::Home::place(), .examine_mkfs = examine_mkfs}));
  add_loader(report.checks);
  return report;
}

}  // namespace dsec::cli
