#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/traj_text.h"
#include "cli/wiring.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

std::string of_limit(const std::string& used, std::uint64_t limit, const std::string& shown) {
  return limit == 0 ? used : used + " / " + shown;
}

// What a pause gave back can be seen only while it lasts.
std::string memory(const engine::SandboxStats& stats) {
  const std::string now =
      of_limit(format_size(stats.memory_bytes), stats.memory_limit, format_size(stats.memory_limit));
  return stats.memory_before_pause ? now + " (" + format_size(*stats.memory_before_pause) + " before the pause)" : now;
}

// Of a machine, whose memory is its guest's.
std::string host_memory(const engine::SandboxStats& stats) {
  if (!stats.host_memory) return "-";
  return format_size(stats.host_memory->own) + " + " + format_size(stats.host_memory->shared) + " shared";
}

std::string loaded(const Json& on_demand) {
  if (on_demand.is_null()) return "-";
  const Json& first = on_demand["first_command_ms"];
  return format_size(json_u64(on_demand, "fetched")) + " of " + format_size(json_u64(on_demand, "bytes")) +
         (first.is_null()
              ? ""
              : ", first command after " + format_duration(std::chrono::milliseconds(first.get<std::int64_t>())));
}

// Of layers that are loaded on demand; with the time from the making of the sandbox to the end of its first command.
Json use_of_layers(const engine::SandboxInfo& info, Invocation& call) {
  Json use = call.wiring().on_demand_use(info.spec.layers);
  if (use.is_null()) return use;
  use["first_command_ms"] = nullptr;
  if (!info.spec.record) return use;
  if (const auto first = first_command(call.wiring().engine().trajectory(info.id)))
    use["first_command_ms"] = first->count();
  return use;
}

std::vector<std::string> cells(const engine::SandboxInfo& info, const engine::SandboxStats& stats,
                               const Json& on_demand) {
  using std::chrono::microseconds, std::chrono::milliseconds, std::chrono::duration_cast;
  return {info.id,
          info.spec.name,
          format_duration(duration_cast<milliseconds>(microseconds(stats.cpu_usec))),
          memory(stats),
          host_memory(stats),
          of_limit(std::to_string(stats.pids), stats.pids_limit, std::to_string(stats.pids_limit)),
          of_limit(format_size(stats.disk_bytes), stats.disk_limit, format_size(stats.disk_limit)),
          stats.oom_kills ? std::to_string(*stats.oom_kills) : "-",
          loaded(on_demand)};
}

void run(const std::vector<std::string>& names, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  std::vector<engine::SandboxInfo> chosen;
  for (const auto& name : names) chosen.push_back(engine.inspect(name));
  if (names.empty()) chosen = engine.list({});
  Table table({"ID", "NAME", "CPU TIME", "MEMORY", "ON HOST", "PIDS", "DISK", "OOM KILLS", "FETCHED"});
  for (const auto& info : chosen) {
    const engine::SandboxStats stats = engine.stats(info.id);
    const Json on_demand = use_of_layers(info, call);
    if (call.out().json()) {
      Json json = to_json(stats);
      json["on_demand"] = on_demand;
      json["id"] = info.id;
      json["name"] = info.spec.name;
      call.out().json_line(json);
    } else {
      table.row(cells(info, stats, on_demand));
    }
  }
  if (!call.out().json()) call.out().table(table);
}

}  // namespace

void add_stats(Command& root) {
  auto names = std::make_shared<std::vector<std::string>>();
  Command& verb = root.verb("stats", "Show what sandboxes use: CPU, memory, processes, disk");
  verb.reaches(Command::Reach::Context);
  verb.positionals("SANDBOX", *names, "Id, unique beginning of an id, or name (default: all that run)", 0);
  verb.note("With -o json, one object a line; a limit of 0 means none.");
  verb.runs([names](Invocation& call) { run(*names, call); });
}

}  // namespace dsec::cli
