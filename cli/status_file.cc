#include "cli/status_file.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/exec_json.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "core/model/sandbox_spec.h"

namespace dsec::cli {
namespace {
constexpr std::string_view kFlag = "--status-file";

std::string signal_text(int number) {
  const char* name = ::sigabbrev_np(number);
  return "signal " + std::to_string(number) + (name ? " (" + std::string(name) + ")" : "");
}

const char* decided_by(ExecResult::Cause cause) {
  switch (cause) {
    case ExecResult::Cause::Exited:
    case ExecResult::Cause::Signalled:
    case ExecResult::Cause::OutOfMemory:
      return "command";
    case ExecResult::Cause::TimedOut:
      return "timeout";
    case ExecResult::Cause::CannotExecute:
    case ExecResult::Cause::NotFound:
    case ExecResult::Cause::Lost:
    case ExecResult::Cause::Unknown:
      return "dsec";
  }
  return "dsec";
}

void write(const std::string& path, const Json& status) {
  const std::string text = canonical_json(status) + "\n";
  attempt("cannot write the status file " + quote(path), [&] {
    // A pipe or /dev/null is written to, never replaced.
    if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path))
      write_all(open_file(path, O_WRONLY | O_CLOEXEC).get(), text);
    else
      write_file_atomic(path, text);
  });
}

}  // namespace

std::string describe_memory(const ExecResult& result) {
  if (!result.memory_limit) return "the host has no memory left";
  return "of a limit of " + format_size(result.memory_limit) +
         (result.memory_peak ? " the most used was " + format_size(result.memory_peak) : " all was used");
}

std::string describe_end(const ExecResult& result) {
  const std::string detail = result.detail.empty() ? "" : ": " + result.detail;
  switch (result.cause) {
    case ExecResult::Cause::Exited:
      return "exit code " + std::to_string(result.exit_code);
    case ExecResult::Cause::Signalled:
      return signal_text(result.signal);
    case ExecResult::Cause::OutOfMemory:
      return "out of memory" + (result.memory_limit ? ": " + describe_memory(result) : detail);
    case ExecResult::Cause::TimedOut:
      return "timed out" + detail;
    case ExecResult::Cause::CannotExecute:
      return "cannot execute" + detail;
    case ExecResult::Cause::NotFound:
      return "not found" + detail;
    case ExecResult::Cause::Lost:
      return "its outcome is not known" + detail;
    case ExecResult::Cause::Unknown:
      return "unknown outcome" + detail;
  }
  return "unknown";
}

void write_status(const std::string& path, const ExecResult& result) {
  if (path.empty()) return;
  Json status = {{"by", decided_by(result.cause)},          {"exit_code", result.shell_code()},
                 {"reason", describe_end(result)},          {"duration_us", result.duration.count()},
                 {"stdout_bytes", result.stdout_bytes},     {"stderr_bytes", result.stderr_bytes},
                 {"stdout_dropped", result.stdout_dropped}, {"stderr_dropped", result.stderr_dropped}};
  if (result.oom_kills) status["memory"] = memory_json(result);
  write(path, status);
}

void write_status_of_failure(const std::vector<std::string>& args, int exit_code, const Error& error) {
  std::string path;
  for (std::size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
    if (args[i] == kFlag && i + 1 < args.size()) path = args[i + 1];
    if (args[i].rfind(std::string(kFlag) + "=", 0) == 0) path = args[i].substr(kFlag.size() + 1);
  }
  if (path.empty()) return;
  try {
    write(path, {{"by", "dsec"}, {"exit_code", exit_code}, {"reason", error.message()}});
  } catch (const Error& problem) {
    std::cerr << "error: " << problem.message() << '\n';
  }
}

}  // namespace dsec::cli
