#include "core/engine/local_engine.h"

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/engine/lease.h"
#include "core/engine/sandbox_id.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

bool valid_sandbox_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 63 && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || c == '_' || c == '.' || c == '-'; });
}

class EngineOfThisHost final : public LocalEngine {
 public:
  EngineOfThisHost(const Home& home, LayerStore& store, LayerMounter& mounter, Runners runners)
      : home_(home), records_(home_), store_(store), mounter_(mounter), runners_(std::move(runners)) {}

  SandboxInfo create(const SandboxSpec& wanted) override {
    SandboxSpec spec = wanted;
    // The lease shall say what the rules mean, whatever the configuration says later.
    if (spec.network == NetworkMode::Policy) resolve_presets(spec.network_plan, presets());
    Runner& runner = runner_of(spec);
    if (!spec.name.empty() && !valid_sandbox_name(spec.name))
      throw usage_error(quote(spec.name) + " is no valid name for a sandbox")
          .hint("use letters, digits, '_', '.' and '-', at most 63, the first a letter or digit");
    if (spec.layers.empty()) throw usage_error("a sandbox needs at least one layer");
    runner.check(spec);

    Lease lease{home_.host_id() + random_id(16), ProcessIdentity::self(), std::chrono::system_clock::now(), spec};
    return attempt("cannot start sandbox " + (spec.name.empty() ? lease.id : quote(spec.name)), [&] {
      // From here on gc spares the layers; only then is it certain that they stay.
      SandboxRecords::Created made = records_.create(lease);
      try {
        store_.confirm(spec.layers);
        const std::vector<StoredLayer> layers = stored_layers(spec.layers);
        LayerStack stack = mounter_.open(layers, spec.accept_conflicts);
        runner.start({lease.id, made.directory, spec, std::move(stack)});
        return describe(lease, runner.status(made.directory));
      } catch (...) {
        const std::exception_ptr failed = std::current_exception();
        try {
          runner.reclaim(made.directory);
          records_.remove(lease.id, spec.name);
        } catch (const Error&) {
          // The lease stays, and gc finishes what could not be removed now.
        }
        std::rethrow_exception(failed);
      }
    });
  }

  std::unique_ptr<ExecStream> exec(const std::string& id, const ExecSpec& spec) override {
    if (spec.argv.empty()) throw usage_error("no command is given");
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.exec(directory, spec); });
  }
  std::unique_ptr<ExecStream> attach(const std::string& id, const std::string& exec_id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.attach(directory, exec_id); });
  }
  std::vector<ExecInfo> commands(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.commands(directory); });
  }

  std::vector<SandboxInfo> list(const ListFilter& filter) override {
    std::vector<SandboxInfo> found;
    for (const std::string& id : records_.ids()) {
      std::optional<SandboxInfo> info = read(id);
      if (!info || !matches(*info, filter)) continue;
      found.push_back(std::move(*info));
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.created > b.created; });
    return found;
  }

  SandboxInfo inspect(const std::string& id) override {
    const std::string resolved = records_.resolve(id);
    if (std::optional<SandboxInfo> info = read(resolved)) return *std::move(info);
    throw usage_error("sandbox " + resolved + " is being removed");
  }

  SandboxInfo wait(const std::string& id, std::optional<std::chrono::milliseconds> timeout) override {
    const std::string resolved = records_.resolve(id);
    with(resolved, [&](Runner& runner, const fs::path& directory) {
      if (!runner.wait(directory, timeout)) throw failure("sandbox " + resolved + " did not end in time");
    });
    return inspect(resolved);
  }

  void stop(const std::string& id, std::chrono::milliseconds grace) override {
    with(id, [&](Runner& runner, const fs::path& directory) { runner.stop(directory, grace); });
  }

  void remove(const std::string& id, bool force) override {
    const std::string resolved = records_.resolve(id);
    attempt("cannot remove sandbox " + resolved, [&] {
      const fs::path directory = records_.directory(resolved);
      const FileLock lock = FileLock::try_lock(directory / "lock", FileLock::Mode::Exclusive);
      if (!lock) throw failure("another process is changing it right now").hint("try again");
      const std::optional<Lease> lease = records_.lease(resolved);
      if (!lease) return records_.remove(resolved, "");
      Runner& runner = runner_of(lease->spec);
      const SandboxInfo info = describe(*lease, runner.status(directory));
      const bool live = info.state == SandboxState::Running || info.state == SandboxState::Paused;
      if (live && !force)
        throw usage_error("it is " + std::string(to_string(info.state)))
            .hint("dsec stop " + resolved + " first, or dsec rm --force");
      if (live) runner.stop(directory, std::chrono::milliseconds(0));
      runner.reclaim(directory);
      records_.remove(resolved, lease->spec.name);
    });
  }

  void logs(const std::string& id, const LogOptions& options, const LogSink& sink) override {
    with(id, [&](Runner& runner, const fs::path& directory) { runner.logs(directory, options, sink); });
  }
  SandboxStats stats(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.stats(directory); });
  }
  std::vector<Change> diff(const std::string& id) override {
    const SandboxInfo info = inspect(id);
    return runner_of(info.spec).diff(records_.directory(info.id), opener(info.spec));
  }
  UniqueFd open_writable_layer(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.open_writable_layer(directory); });
  }
  void copy_out(const std::string& id, const std::string& path, int fd) override {
    const SandboxInfo info = inspect(id);
    runner_of(info.spec).copy_out(records_.directory(info.id), opener(info.spec), path, fd);
  }
  void copy_in(const std::string& id, const std::string& path, int fd) override {
    const SandboxInfo info = inspect(id);
    runner_of(info.spec).copy_in(records_.directory(info.id), opener(info.spec), path, fd);
  }
  NetworkReport network(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.network(directory); });
  }
  void set_network(const std::string& id, const NetworkPlan& wanted) override {
    NetworkPlan plan = wanted;
    resolve_presets(plan, presets());
    with(id, [&](Runner& runner, const fs::path& directory) { runner.set_network(directory, plan); });
  }
  std::string network_log(const std::string& id, std::uint64_t from) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.network_log(directory, from); });
  }

 private:
  static NetworkPresets presets() { return network_presets(Config::load().presets); }

  Runner& runner_of(const SandboxSpec& spec) const {
    const auto found = runners_.find(spec.backend);
    if (found == runners_.end()) {
      std::vector<std::string> names;
      for (const auto& [name, runner] : runners_) names.push_back(name);
      Error error = usage_error("backend " + quote(spec.backend) + " is not available");
      for (const std::string& name : names) error.hint("use --backend " + name);
      throw error;
    }
    return found->second;
  }

  template <typename Call>
  auto with(const std::string& id, Call&& call) -> std::invoke_result_t<Call, Runner&, const fs::path&> {
    const std::string resolved = records_.resolve(id);
    const std::optional<Lease> lease = records_.lease(resolved);
    if (!lease) throw usage_error("sandbox " + resolved + " is being removed");
    return std::forward<Call>(call)(runner_of(lease->spec), records_.directory(resolved));
  }

  // Empty when the sandbox disappears while it is looked at.
  std::optional<SandboxInfo> read(const std::string& id) const {
    const fs::path directory = records_.directory(id);
    const std::optional<Lease> lease = records_.lease(id);
    if (!lease) return std::nullopt;
    return describe(*lease, runner_of(lease->spec).status(directory));
  }

  static bool matches(const SandboxInfo& info, const ListFilter& filter) {
    const bool ended = info.state == SandboxState::Stopped || info.state == SandboxState::Failed;
    if (ended && !filter.all) return false;
    return std::all_of(filter.labels.begin(), filter.labels.end(), [&](const auto& wanted) {
      const auto found = info.spec.labels.find(wanted.first);
      return found != info.spec.labels.end() && (wanted.second.empty() || wanted.second == found->second);
    });
  }

  // Manifests never change, so a process that makes many sandboxes of one environment asks the store once.
  OpenLayers opener(const SandboxSpec& spec) {
    return [this, layers = spec.layers, accept = spec.accept_conflicts] {
      return mounter_.open(stored_layers(layers), accept);
    };
  }

  std::vector<StoredLayer> stored_layers(const std::vector<Digest>& digests) {
    const std::lock_guard lock(cache_mutex_);
    std::vector<StoredLayer> layers;
    for (const Digest& digest : digests) {
      auto found = cache_.find(digest);
      if (found == cache_.end() || !found->second.trusted)
        found = cache_.insert_or_assign(digest, store_.get(LayerRef::of(digest))).first;
      layers.push_back(found->second);
    }
    return layers;
  }

  const Home home_;
  SandboxRecords records_;
  LayerStore& store_;
  LayerMounter& mounter_;
  const Runners runners_;
  std::mutex cache_mutex_;
  std::unordered_map<Digest, StoredLayer> cache_;
};

}  // namespace

std::unique_ptr<LocalEngine> make_local_engine(const Home& home, LayerStore& store, LayerMounter& mounter,
                                               Runners runners) {
  return std::make_unique<EngineOfThisHost>(home, store, mounter, std::move(runners));
}

}  // namespace dsec::engine
