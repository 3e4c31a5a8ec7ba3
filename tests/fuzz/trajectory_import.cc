// Trajectories from elsewhere, of each form. The first byte decides: the input as it is, or as lines that get the
// checksums that they should have, so that what stands behind those is reached, too.

#include <fcntl.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/sealed_lines.h"
#include "core/engine/atif.h"
#include "core/engine/trajectory_export.h"
#include "core/engine/trajectory_import.h"
#include "core/engine/trajectory_report.h"

using namespace dsec;
using namespace dsec::engine;
namespace fs = std::filesystem;

namespace {

std::string sealed(const std::string& text) {
  std::string lines;
  std::uint32_t checksum = 0;
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    if (end > at) lines += sealed_line(text.substr(at, end - at), checksum);
  }
  return lines;
}

// What was taken can be read, compared, exported and shown.
void use(const fs::path& place) {
  const Trajectory trajectory = Trajectory::read(place);
  if (!trajectory.damage.empty()) std::abort();
  SecretMask mask;
  mask.learn(trajectory);
  const UniqueFd out = unnamed_file();
  export_trajectory(trajectory, mask, out.get());
  std::vector<std::string> left_out;
  export_atif(trajectory, mask, left_out);
  const ReportWords words{[](const Operation& operation) { return operation.kind; },
                          [](const Trajectory&, const Operation&) { return std::string(); },
                          [](const std::string&, const std::string&) { return std::string(); }};
  write_report({.trajectory = trajectory, .against = &trajectory}, mask, words, [](std::string_view) {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const TempDirectory scratch(fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path());
  const Home home = Home::open(scratch.path() / "home");
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const fs::path file = scratch.path() / "file";
  write_all(open_file(file, O_WRONLY | O_CREAT, 0600).get(), data[0] & 1 ? sealed(text) : text);
  std::size_t taken = 0;
  try {
    const ImportedTrajectory made = import_trajectory(home, file, {});
    taken = 1;
    use(home.trajectories() / made.id);
  } catch (const Error&) {
  }
  // Refused or not: only what was taken is there.
  if (fs::exists(home.trajectories()) &&
      static_cast<std::size_t>(std::distance(fs::directory_iterator(home.trajectories()), {})) != taken)
    std::abort();
  return 0;
}
