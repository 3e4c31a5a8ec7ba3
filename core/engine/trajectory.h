#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files.h"
#include "core/base/unique_fd.h"
#include "core/engine/home.h"
#include "core/engine/spool_reader.h"
#include "core/model/operation.h"

namespace dsec::engine {

/// The name of the log in a trajectory's directory.
inline constexpr char kTrajectoryLog[] = "log.jsonl";
/// The records of an export that are of no operation.
inline constexpr char kFileRecord[] = "file", kEndRecord[] = "end";

/// A file that has no name and is gone with its descriptor. Throws Error.
UniqueFd unnamed_file();

/// The files that an export has within itself; man/dsec-trajectory.5.md tells how.
class EmbeddedFiles {
 public:
  explicit EmbeddedFiles(std::filesystem::path file) : file_(std::move(file)) {}
  /// Notes that the line of `size` bytes at `at` has the next part of the file `name`.
  void note(const std::string& name, std::uint64_t at, std::size_t size) { parts_[name].push_back({at, size}); }
  bool has(const std::string& name) const { return parts_.contains(name); }
  /// A file without a name that has its content, at offset 0. Throws Error.
  UniqueFd open(const std::string& name) const;

 private:
  struct Part {
    std::uint64_t at;
    std::size_t size;
  };
  std::filesystem::path file_;
  std::map<std::string, std::vector<Part>> parts_;
};

/// A log that was read, and the way to what lies beside it; man/dsec-trajectory.5.md is the reference.
struct Trajectory {
  std::filesystem::path directory;
  TrajectoryHeader header;
  std::vector<Operation> operations;                ///< in order of `seq`
  std::string damage;                               ///< where the log is damaged and reading stopped; empty: nowhere
  bool live = false;                                ///< its keeper lives: what has not ended is running
  std::shared_ptr<const EmbeddedFiles> embedded{};  ///< of an exported one; null: its files lie beside the log

  /// `place` is the directory of a trajectory, a log in any directory, or an export. A last line that was being written
  /// is ignored. Throws Error when there is none, or when its header cannot be read.
  static Trajectory read(const std::filesystem::path& place);

  /// Null when no operation has this op_id.
  const Operation* find(std::string_view op_id) const;

  /// What the operation wrote, in order of time; `marks`: with a line where something was dropped. What stands in the
  /// log itself carries the time of its end.
  enum class Marks { With, Without };
  void output(const Operation& operation, Marks marks, const SpoolSink& sink) const;
  /// One stream of it (0 stdout, 1 stderr), head and tail, without marks.
  std::string output(const Operation& operation, unsigned stream) const;
  /// What a command was given as standard input, as far as it was kept.
  std::string input(const Operation& operation) const;
  /// Whether that may not be all: nothing tells how much was given, and what fills all that is kept may have been more.
  bool input_was_cut(const Operation& operation) const;
  /// The tar stream that was brought in or out; empty when it was not kept.
  UniqueFd content(const Operation& operation) const;
  /// A file beside the log, or in the export; throws Error when there is none.
  UniqueFd beside(const std::string& name) const;
  /// The same, empty when there is none.
  UniqueFd beside_if_there(const std::string& name) const;
};

/// The operation named `op_id` of the log in `directory`; reads no more than it must.
std::optional<Operation> find_operation(const std::filesystem::path& directory, std::string_view op_id);
/// Only the first line.
TrajectoryHeader read_trajectory_header(const std::filesystem::path& directory);

/// Appends to a log that no keeper writes: of an import, or of a sandbox that has ended. Holds the trajectory's lock.
class TrajectoryWriter {
 public:
  /// Makes `directory` with a log that has only its header; returns the checksum that the next line continues from.
  static std::uint32_t create(const std::filesystem::path& directory, const TrajectoryHeader& header);

  /// Waits for the lock, takes away a last line that was never finished; throws Error when the log is damaged before.
  explicit TrajectoryWriter(const std::filesystem::path& directory);

  std::uint64_t next_seq() const noexcept { return next_seq_; }
  /// `operation.seq` and an empty op_id are filled in. Returns the seq.
  std::uint64_t started(Operation operation);
  /// Its `done` must be there.
  void done(const Operation& operation);
  /// Returns when all of it is on the disk.
  void sync();

 private:
  void append(const std::string& body);
  std::filesystem::path directory_;
  FileLock lock_;
  UniqueFd log_;
  std::uint32_t checksum_ = 0;
  std::uint64_t next_seq_ = 1;
};

/// One line of `traj ls`.
struct TrajectoryInfo {
  std::string id, environment, source;
  std::chrono::system_clock::time_point created, last;  ///< last: when the log was written to
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;  ///< of all its files; output that the sandbox still has, too, counts
  bool live = false;        ///< its sandbox is still there
  std::vector<Digest> layers;
};

/// In no order; none where nothing was recorded yet.
std::vector<std::string> trajectory_ids(const Home& home);
/// Newest first. What cannot be read is left out and told in `problems`.
std::vector<TrajectoryInfo> list_trajectories(const Home& home, std::vector<std::string>& problems);

/// How long trajectories stay after their sandbox, and how much room they may take together.
struct TrajectoryLimits {
  std::chrono::milliseconds age{std::chrono::hours(24 * 30)};
  std::uint64_t bytes = 10ull << 30;
};
/// Those that exceed the limits, oldest first: all that are too old or empty, and as many more as must go. Live ones
/// stay.
std::vector<TrajectoryInfo> expired_trajectories(std::vector<TrajectoryInfo> all, const TrajectoryLimits& limits,
                                                 std::chrono::system_clock::time_point now);
/// Idempotent.
void remove_trajectory(const Home& home, const std::string& id);

}  // namespace dsec::engine
