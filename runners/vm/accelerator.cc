#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <x86intrin.h>

#include <cstdlib>
#include <sstream>
#include <thread>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/vm/qemu.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

// Where KVM works a kernel without a root filesystem has panicked in half a second.
constexpr milliseconds kProbePatience{6'000};
// Of this boot, since /run is.
constexpr char kSeen[] = "/run/dsec-kvm";

std::string boots(const fs::path& qemu, const fs::path& kernel) {
  const UniqueFd null = open_file("/dev/null", O_WRONLY);
  ChildProcess machine = ChildProcess::spawn({.argv = {qemu.native(),
                                                       "-M",
                                                       "microvm,acpi=on",
                                                       "-accel",
                                                       "kvm",
                                                       "-cpu",
                                                       "host",
                                                       "-m",
                                                       "128M",
                                                       "-nodefaults",
                                                       "-no-user-config",
                                                       "-display",
                                                       "none",
                                                       "-no-reboot",
                                                       "-serial",
                                                       "null",
                                                       "-kernel",
                                                       kernel.native(),
                                                       "-append",
                                                       "panic=-1 reboot=t quiet"},
                                              .environment = {},
                                              .directory = "/",
                                              .descriptors = {{null.get(), 1}, {null.get(), 2}}});
  const std::optional<ExitStatus> status = machine.wait_for(kProbePatience);
  if (!status) return "a guest under KVM stands still";
  return status->ok() ? "" : "QEMU with KVM ended with " + status->str();
}

}  // namespace

fs::path find_qemu() {
  std::istringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string directory; std::getline(path, directory, ':');) {
    const fs::path candidate = fs::path(directory) / "qemu-system-x86_64";
    if (directory.starts_with('/') && ::access(candidate.c_str(), X_OK) == 0) return fs::canonical(candidate);
  }
  return ::access("/usr/bin/qemu-system-x86_64", X_OK) == 0 ? fs::canonical("/usr/bin/qemu-system-x86_64") : fs::path();
}

namespace {

// Both clocks at one moment: of several readings that between which the least time passed.
struct Moment {
  std::uint64_t ticks = 0;
  steady_clock::time_point time;
};
Moment now() {
  Moment best;
  auto least = steady_clock::duration::max();
  for (int reading = 0; reading < 20; ++reading) {
    const auto before = steady_clock::now();
    const std::uint64_t ticks = __rdtsc();
    const auto passed = steady_clock::now() - before;
    if (passed >= least) continue;
    least = passed;
    best = {ticks, before + passed / 2};
  }
  return best;
}

}  // namespace

std::uint64_t counter_khz() {
  const Moment begin = now();
  std::this_thread::sleep_for(milliseconds(20));
  const Moment end = now();
  const auto nanoseconds = std::chrono::nanoseconds(end.time - begin.time).count();
  return (end.ticks - begin.ticks) * 1'000'000 / static_cast<std::uint64_t>(nanoseconds);
}

std::string clock_words(std::uint64_t khz) { return "no_timer_check tsc_early_khz=" + std::to_string(khz); }

Accelerator choose_accelerator(const fs::path& qemu, const fs::path& kernel, std::string* why) {
  std::string missing;
  const UniqueFd device(::open("/dev/kvm", O_RDWR | O_CLOEXEC));
  if (!device) missing = system_error("open '/dev/kvm'").message();
  if (missing.empty()) {
    // One process looks, and the others wait for what it finds.
    const FileLock lock(kSeen, FileLock::Mode::Exclusive);
    const std::string subject = qemu.native() + " " + kernel.filename().native() + "\n";
    const std::string seen = read_file(kSeen, 4096);
    if (seen.starts_with(subject)) {
      missing = seen.substr(subject.size());
    } else {
      missing = boots(qemu, kernel);
      write_all(open_file(kSeen, O_WRONLY | O_TRUNC).get(), subject + missing);
    }
  }
  if (why) *why = missing;
  return missing.empty() ? Accelerator::Kvm : Accelerator::Tcg;
}

}  // namespace dsec::runners
