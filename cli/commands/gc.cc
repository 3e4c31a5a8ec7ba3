#include "registry/gc/gc.h"

#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/trace_home.h"
#include "cli/wiring.h"
#include "core/base/config.h"
#include "core/base/units.h"
#include "core/engine/sandbox_records.h"
#include "core/engine/trajectory.h"

namespace dsec::cli {
namespace {

struct Options {
  bool dry_run = false, build_cache = false;
};

registry::GcPorts ports(Wiring& wiring) {
  registry::GcPorts ports;
  ports.reclaim_sandboxes = [&wiring](bool dry_run, std::vector<std::string>&) {
    std::vector<std::string> ids;
    for (const auto& swept : engine::sweep_sandboxes(wiring.home(), wiring.runners(), dry_run)) ids.push_back(swept.id);
    return ids;
  };
  ports.expire_trajectories = [&wiring](bool dry_run, std::vector<std::string>& warnings) {
    const Config config = Config::load();
    engine::TrajectoryLimits limits;
    limits.age = config.trajectory_age.value_or(limits.age);
    limits.bytes = config.trajectory_bytes.value_or(limits.bytes);
    std::vector<registry::GcItem> items;
    for (const auto& info : engine::expired_trajectories(engine::list_trajectories(wiring.home(), warnings), limits,
                                                         std::chrono::system_clock::now())) {
      if (!dry_run) engine::remove_trajectory(wiring.home(), info.id);
      items.push_back({registry::GcItem::Kind::Trajectory, info.id, info.bytes});
    }
    return items;
  };
  // Without root nothing of ours is mounted.
  if (::geteuid() == 0)
    ports.unmount_unused = [&wiring](std::span<const Digest> needed) {
      const auto unmounted = wiring.mounter().unmount_unused(needed);
      engine::release_shared(wiring.home(), wiring.runners());
      return unmounted;
    };
  return ports;
}

void run(const Options& options, Invocation& call) {
  const bool dry_run = options.dry_run;
  std::vector<std::string> problems;
  if (!dry_run && ::geteuid() == 0) TraceHome::remove_abandoned(call.wiring().home(), problems);
  // First: layers of steps that nothing remembers go in the same run.
  const auto caches = call.wiring().prune_build_caches(options.build_cache, dry_run, problems);
  registry::GcResult result = registry::collect_garbage(call.wiring().store(), ports(call.wiring()), dry_run);
  result.warnings.insert(result.warnings.end(), problems.begin(), problems.end());
  for (const auto& cache : caches) result.bytes += cache.bytes;
  for (const auto& warning : result.warnings) call.progress().warn(warning);
  if (call.out().json()) {
    Json removed = Json::array();
    for (const auto& item : result.removed)
      removed.push_back({{"kind", registry::to_string(item.kind)}, {"name", item.name}, {"bytes", item.bytes}});
    for (const auto& cache : caches)
      removed.push_back({{"kind", "cache"}, {"name", printable(cache.id)}, {"bytes", cache.bytes}});
    call.out().json({{"dry_run", dry_run},
                     {"removed", removed},
                     {"bytes", result.bytes},
                     {"unmounted", result.unmounted},
                     {"warnings", result.warnings}});
  } else {
    for (const auto& cache : caches) call.out().line("cache " + printable(cache.id));
    for (const auto& item : result.removed)
      call.out().line(std::string(registry::to_string(item.kind)) + " " + printable(item.name));
    call.out().line(std::string(dry_run ? "would free " : "freed ") + format_size(result.bytes));
  }
  if (!result.warnings.empty()) call.exit_with(1);
}

}  // namespace

void add_gc(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("gc", "Remove what nothing names any more, and what dead processes left");
  verb.flag("-n,--dry-run", options->dry_run, "Show what would go, and remove nothing");
  verb.flag("--build-cache", options->build_cache,
            "Also what builds keep: cached steps, cache mounts and fetched files that nobody uses now");
  verb.note(
      "Kept are tagged layers, layers of sandboxes, kept trajectories and registered dsec.lock files, what those were "
      "built on, and what running commands hold.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
