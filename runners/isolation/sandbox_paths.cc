#include "runners/isolation/sandbox_paths.h"

#include <filesystem>
#include <system_error>

namespace dsec::runners {

std::vector<std::string> masked_paths() {
  std::vector<std::string> paths(std::begin(kMaskedPaths), std::end(kMaskedPaths));
  std::error_code ignored;  // a host without /sys has none of them
  for (const auto& cpu : std::filesystem::directory_iterator("/sys/devices/system/cpu", ignored)) {
    const std::filesystem::path throttle = cpu.path() / "thermal_throttle";
    if (cpu.path().filename().string().rfind("cpu", 0) == 0 && std::filesystem::exists(throttle, ignored))
      paths.push_back(throttle.string() + '/');
  }
  return paths;
}

}  // namespace dsec::runners
