#include "layers/disk/disk_holder.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "layers/disk/disk_protocol.h"

namespace dsec::layers {
namespace {

using std::chrono::milliseconds;

// What a machine asks again may be what kills it.
constexpr milliseconds kLived{1000}, kFirstRest{20}, kLongestRest{2000};
// About half a minute, for which a machine's VMM waits, too.
constexpr int kMostFailures = 20;

ChildProcess spawn(const char* what, const std::string& program, const std::string& disk,
                   const DiskDescriptors& descriptors, int ready) {
  SpawnOptions options;
  // By its path, so that one that was installed meanwhile takes over.
  options.argv = {program, what, disk, std::to_string(descriptors.below.size())};
  options.descriptors = {{descriptors.control.get(), kControlFd}, {descriptors.nbd.get(), kNbdFd}};
  int next = kFirstFd;
  for (const UniqueFd& layer : descriptors.below) options.descriptors.emplace_back(layer.get(), next++);
  if (ready >= 0) options.descriptors.emplace_back(ready, next);
  options.kill_with_parent = false;
  return ChildProcess::spawn(options);
}

}  // namespace

void start_holder(const std::string& program, const std::string& disk, const DiskDescriptors& descriptors, int ready) {
  // Never waited for nor killed: it outlives this process.
  static std::optional<ChildProcess> holder;
  holder.emplace(spawn(kHoldDisk, program, disk, descriptors, ready));
}

int hold_disk(const std::string& program, const std::string& disk, const DiskDescriptors& descriptors, UniqueFd ready) {
  milliseconds rest{0};
  for (int failures = 0; failures < kMostFailures;) {
    const auto began = std::chrono::steady_clock::now();
    ChildProcess server = spawn(kServeDisk, program, disk, descriptors, ready.get());
    ready.reset();
    const ExitStatus status = server.wait();
    if (status.signal == 0) return status.code;
    const bool lived = std::chrono::steady_clock::now() - began > kLived;
    failures = lived ? 1 : failures + 1;
    rest = lived ? milliseconds(0) : std::clamp(rest * 2, kFirstRest, kLongestRest);
    std::this_thread::sleep_for(rest);
  }
  throw failure("one after another that serves the disk is killed at once: the machine gets errors from now on");
}

}  // namespace dsec::layers
