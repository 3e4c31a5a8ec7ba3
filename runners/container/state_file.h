#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "core/engine/runner.h"
#include "runners/protocol/wire.h"

namespace dsec::runners {

/// What a keeper has written of its sandbox (state.json; only the keeper writes it).
struct SandboxRecord {
  engine::RunnerStatus status;
  std::string boot_id;
  pid_t init_pid = 0;  ///< of PID 1 on the host; valid while the keeper lives
  std::string main_exec_id;
  std::optional<std::uint64_t> memory_before_pause;  ///< of one that is paused, where a memory group counts it
};

/// Empty when there is none yet; throws Error when it is damaged or of an unknown schema.
std::optional<SandboxRecord> read_record(const std::filesystem::path& directory);

/// The pid of the living keeper of a sandbox, from the lock that it holds on the directory; 0 when there is none.
pid_t living_keeper(const std::filesystem::path& directory);

/// The record and whether its keeper still lives: what it says of a sandbox that should run becomes Orphaned without.
engine::RunnerStatus read_status(const std::filesystem::path& directory);

/// Commands that have ended (commands.jsonl). A last line that a crash cut off is passed over.
std::vector<engine::ExecInfo> read_ended_commands(const std::filesystem::path& directory);

/// An Exited frame.
ExecResult read_result(wire::Reader reader);

}  // namespace dsec::runners
