#include "cli/exec_json.h"

#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/status_file.h"
#include "core/base/json_bytes.h"

namespace dsec::cli {
namespace {

Json time_or_null(std::chrono::system_clock::time_point time) {
  return time.time_since_epoch().count() == 0 ? Json(nullptr) : Json(iso_time(time));
}

std::string_view word(ExecResult::Cause cause) {
  switch (cause) {
    case ExecResult::Cause::Exited:
      return "exited";
    case ExecResult::Cause::Signalled:
      return "signalled";
    case ExecResult::Cause::TimedOut:
      return "timed_out";
    case ExecResult::Cause::OutOfMemory:
      return "out_of_memory";
    case ExecResult::Cause::CannotExecute:
      return "cannot_execute";
    case ExecResult::Cause::NotFound:
      return "not_found";
    case ExecResult::Cause::Lost:
      return "lost";
    case ExecResult::Cause::Unknown:
      return "unknown";
  }
  return "lost";
}

Json host_memory_json(const engine::HostMemory& memory) {
  return {{"own", memory.own}, {"shared", memory.shared}, {"part_of_shared", memory.part_of_shared}};
}

}  // namespace

Json bytes_to_json(std::string_view bytes) {
  if (is_utf8(bytes)) return {{"data", bytes}};
  return {{"base64", base64(bytes)}};
}

Json memory_json(const ExecResult& result) {
  return {{"oom_kills", result.oom_kills},
          {"limit", result.memory_limit ? Json(result.memory_limit) : Json(nullptr)},
          {"peak", result.memory_peak ? Json(result.memory_peak) : Json(nullptr)}};
}

Json to_json(const ExecResult& result) {
  Json json = {{"cause", word(result.cause)},
               {"exit_code", result.shell_code()},
               {"signal", result.signal},
               {"reason", describe_end(result)},
               {"duration_us", result.duration.count()},
               {"stdout_bytes", result.stdout_bytes},
               {"stderr_bytes", result.stderr_bytes},
               {"stdout_dropped", result.stdout_dropped},
               {"stderr_dropped", result.stderr_dropped}};
  if (result.session_ended) json["session_ended"] = true;
  if (result.oom_kills) json["memory"] = memory_json(result);
  return json;
}

Json to_json(const engine::ExecEvent& event) {
  if (event.kind == engine::ExecEvent::Kind::Exited) {
    Json json = to_json(event.result);
    json["type"] = "exit";
    return json;
  }
  Json json = bytes_to_json(event.data);
  json["type"] = event.kind == engine::ExecEvent::Kind::Stdout ? "stdout" : "stderr";
  return json;
}

Json to_json(const engine::ExecInfo& info) {
  Json argv = Json::array();
  // Bytes that are no UTF-8 cannot stand in JSON.
  for (const auto& word : info.argv) argv.push_back(is_utf8(word) ? word : printable(word));
  return {{"exec_id", info.exec_id},
          {"argv", std::move(argv)},
          {"session", info.session.empty() ? Json(nullptr) : Json(info.session)},
          {"running", info.running},
          {"result", info.result ? to_json(*info.result) : Json(nullptr)}};
}

Json to_json(const engine::SessionInfo& info) {
  return {{"id", info.id},
          {"name", info.name},
          {"shell", info.shell},
          {"tty", info.tty},
          {"opened", iso_time(info.opened)},
          {"commands", info.commands},
          {"running", info.running.empty() ? Json(nullptr) : Json(info.running)}};
}

Json to_json(const engine::SandboxInfo& info) {
  return {{"id", info.id},
          {"name", info.spec.name},
          {"state", engine::to_string(info.state)},
          {"reason", info.reason},
          {"created", time_or_null(info.created)},
          {"ended", time_or_null(info.ended)},
          {"command", info.command},
          {"result", info.main_result ? to_json(*info.main_result) : Json(nullptr)},
          {"keeper_pid", info.keeper_pid},
          {"spec", dsec::to_json(info.spec)}};
}

Json to_json(const engine::SandboxStats& stats) {
  const auto& before = stats.memory_before_pause;
  return {{"memory_bytes", stats.memory_bytes},
          {"memory_before_pause", before ? Json(*before) : Json(nullptr)},
          {"host_memory", stats.host_memory ? host_memory_json(*stats.host_memory) : Json(nullptr)},
          {"memory_limit", stats.memory_limit},
          {"memory_peak", stats.memory_peak ? Json(*stats.memory_peak) : Json(nullptr)},
          {"cpu_usec", stats.cpu_usec},
          {"pids", stats.pids},
          {"pids_limit", stats.pids_limit},
          {"disk_bytes", stats.disk_bytes},
          {"disk_limit", stats.disk_limit},
          {"oom_kills", stats.oom_kills ? Json(*stats.oom_kills) : Json(nullptr)}};
}

}  // namespace dsec::cli
