#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/home.h"
#include "core/model/operation.h"

namespace dsec::engine {

enum class TrajectoryFormat { Dsec, Atif, SweAgent };
/// "dsec", "atif", "swe-agent".
std::string_view to_string(TrajectoryFormat format);

struct ImportOptions {
  std::optional<TrajectoryFormat> format;  ///< none: what the file looks like
  /// What a replay makes the sandbox of: of trajectories that do not tell it. May be without layers.
  TrajectoryHeader header;
  std::string name;  ///< for people; empty: none
};

struct ImportedTrajectory {
  std::string id;
  TrajectoryFormat format = TrajectoryFormat::Dsec;
  std::uint64_t operations = 0;
  std::vector<std::string> left_out;  ///< what of the file has no place in a trajectory
};

/// Takes an export of dsec, an ATIF document or a SWE-agent .traj file among the trajectories of `home`. The file may
/// be hostile: it is refused with the reason, nothing of it stays then, and no more memory and disk is used than a
/// small multiple of its size, which is limited. man/dsec-traj.1.md tells what comes of each.
ImportedTrajectory import_trajectory(const Home& home, const std::filesystem::path& file, const ImportOptions& options);

/// Throws Error (Usage) unless it is one that a replay may name a sandbox after: 1 to 63 of [a-z0-9-].
void check_trajectory_id(const std::string& id);

}  // namespace dsec::engine
