#include "registry/gc/gc.h"

#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/config.h"
#include "core/base/units.h"
#include "core/engine/sandbox_records.h"
#include "core/engine/trajectory.h"

namespace dsec::cli {
namespace {

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
      return wiring.mounter().unmount_unused(needed);
    };
  return ports;
}

void run(bool dry_run, Invocation& call) {
  const registry::GcResult result = registry::collect_garbage(call.wiring().store(), ports(call.wiring()), dry_run);
  for (const auto& warning : result.warnings) call.progress().warn(warning);
  if (call.out().json()) {
    Json removed = Json::array();
    for (const auto& item : result.removed)
      removed.push_back({{"kind", registry::to_string(item.kind)}, {"name", item.name}, {"bytes", item.bytes}});
    call.out().json({{"dry_run", dry_run},
                     {"removed", removed},
                     {"bytes", result.bytes},
                     {"unmounted", result.unmounted},
                     {"warnings", result.warnings}});
  } else {
    for (const auto& item : result.removed)
      call.out().line(std::string(registry::to_string(item.kind)) + " " + printable(item.name));
    call.out().line(std::string(dry_run ? "would free " : "freed ") + format_size(result.bytes));
  }
  if (!result.warnings.empty()) call.exit_with(1);
}

}  // namespace

void add_gc(Command& root) {
  auto dry_run = std::make_shared<bool>(false);
  Command& verb = root.verb("gc", "Remove what nothing names any more, and what dead processes left");
  verb.flag("-n,--dry-run", *dry_run, "Show what would go, and remove nothing");
  verb.note(
      "Kept are tagged layers, layers of sandboxes, kept trajectories and registered dsec.lock files, what those were "
      "built on, and what running commands hold.");
  verb.runs([dry_run](Invocation& call) { run(*dry_run, call); });
}

}  // namespace dsec::cli
