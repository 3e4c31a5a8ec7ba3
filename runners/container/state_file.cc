#include "runners/container/state_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/model/operation.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

// In the order of wire::Cause.
constexpr ExecResult::Cause kCauses[] = {
    ExecResult::Cause::Exited,      ExecResult::Cause::Signalled,     ExecResult::Cause::TimedOut,
    ExecResult::Cause::OutOfMemory, ExecResult::Cause::CannotExecute, ExecResult::Cause::NotFound,
    ExecResult::Cause::Lost,
};

std::string detail_of(const std::string& step, const std::string& object, int error) {
  if (step.empty()) return "";
  std::string text = step;
  if (!object.empty()) text += " " + quote(object);
  return error ? text + ": " + errno_text(error) : text;
}

engine::ExecInfo info_from_json(const Json& json) {
  engine::ExecInfo info;
  info.exec_id = json_string(json, "exec_id");
  info.argv = json.value("argv", std::vector<std::string>{});
  info.session = json_string_or(json, "session", "");
  if (const auto found = json.find("result"); found != json.end()) info.result = exec_result_from(*found);
  info.running = !info.result;
  return info;
}

engine::SandboxState state_from_text(const std::string& text) {
  using engine::SandboxState;
  for (const SandboxState state :
       {SandboxState::Running, SandboxState::Paused, SandboxState::Stopped, SandboxState::Failed})
    if (text == engine::to_string(state)) return state;
  throw usage_error("unknown state " + quote(text));
}

}  // namespace

std::optional<SandboxRecord> read_record(const fs::path& directory) {
  const fs::path file = directory / "state.json";
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return std::nullopt;
  if (!fd) throw system_error("open " + quote(file.native()));
  // What is locked is not written over: its keeper takes another file then.
  while (::flock(fd.get(), LOCK_SH) != 0)
    if (errno != EINTR) throw system_error("lock " + quote(file.native()));
  const std::string text = read_all(fd.get());
  // What a power cut can make of a file that nobody waited for.
  if (text.empty()) return std::nullopt;
  const Json json = parse_json(text, file.native());
  return attempt("the record " + quote(file.native()) + " is not valid", [&] {
    if (json_u64(json, "schema") != 1) throw failure("it has an unknown schema");
    SandboxRecord record;
    record.status.state = state_from_text(json_string(json, "state"));
    record.status.reason = json_string(json, "reason");
    record.status.ended = std::chrono::system_clock::time_point(std::chrono::microseconds(json_u64(json, "ended_us")));
    record.status.keeper_pid = static_cast<int>(json_u64(json, "keeper_pid"));
    record.init_pid = static_cast<pid_t>(json_u64(json, "init_pid"));
    record.boot_id = json_string(json, "boot_id");
    if (json.contains("memory_before_pause")) record.memory_before_pause = json_u64(json, "memory_before_pause");
    if (const auto main = json.find("main"); main != json.end()) {
      const engine::ExecInfo info = info_from_json(*main);
      record.status.command = info.argv;
      record.status.main_result = info.result;
      record.main_exec_id = info.exec_id;
    }
    return record;
  });
}

pid_t living_keeper(const fs::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return 0;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  // On a process lock the answer names its owner. -1 would be a lock of another kind, which no keeper takes.
  if (::fcntl(fd.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK || lock.l_pid <= 0) return 0;
  return lock.l_pid;
}

engine::RunnerStatus read_status(const fs::path& directory) {
  using engine::SandboxState;
  // Looked at first: a keeper writes its last record before it goes.
  const pid_t keeper = living_keeper(directory);
  const std::optional<SandboxRecord> record = read_record(directory);
  engine::RunnerStatus status = record ? record->status : engine::RunnerStatus{};
  const bool live = status.state == SandboxState::Running || status.state == SandboxState::Paused;
  if (record && live && !keeper) {
    status.state = SandboxState::Orphaned;
    status.reason = "its keeper is gone";
  }
  status.keeper_pid = keeper;
  return status;
}

std::vector<engine::ExecInfo> read_ended_commands(const fs::path& directory) {
  const fs::path file = directory / "commands.jsonl";
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return {};
  if (!fd) throw system_error("open " + quote(file.native()));
  const std::string text = read_all(fd.get(), 1ull << 30);
  std::vector<engine::ExecInfo> found;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    found.push_back(info_from_json(parse_json(std::string_view(text).substr(at, end - at), file.native())));
    at = end + 1;
  }
  return found;
}

ExecResult read_result(wire::Reader reader) {
  ExecResult result;
  const std::uint32_t cause = reader.u32();
  if (cause >= std::size(kCauses)) throw failure("the sandbox's keeper broke the protocol");
  result.cause = kCauses[cause];
  result.exit_code = static_cast<int>(reader.u32());
  result.signal = static_cast<int>(reader.u32());
  result.duration = std::chrono::microseconds(reader.u64());
  result.stdout_bytes = reader.u64();
  result.stderr_bytes = reader.u64();
  result.stdout_dropped = reader.u64();
  result.stderr_dropped = reader.u64();
  const auto error = static_cast<int>(reader.u32());
  const auto step = reader.str(), object = reader.str();
  result.detail = detail_of({step.data, step.size}, {object.data, object.size}, error);
  result.session_ended = reader.left() > 0 && reader.u32() != 0;
  // A keeper of an earlier release does not tell.
  if (reader.left() > 0) {
    result.oom_kills = reader.u64();
    result.memory_limit = reader.u64();
    result.memory_peak = reader.u64();
  }
  return result;
}

}  // namespace dsec::runners
