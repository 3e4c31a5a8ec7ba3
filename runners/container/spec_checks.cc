#include "runners/container/spec_checks.h"

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/units.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLeastMemory = 1 << 20;
constexpr std::uint64_t kLeastTasks = 2;  // PID 1 and a command
constexpr std::size_t kMostMounts = 128;

void check_bind(const BindMount& bind, const fs::path& home) {
  struct stat info = {};
  if (!bind.source.starts_with('/') || !bind.target.starts_with('/') || bind.target == "/")
    throw usage_error("a bind needs two absolute paths, the second below '/'").hint("-v /HOST/PATH:/PATH[:ro]");
  if (::stat(bind.source.c_str(), &info) != 0) throw system_error("bind " + quote(bind.source));
  // Linux attaches no tree in which a mount namespace is pinned that is older than the one it would go to.
  std::error_code ignored;
  const fs::path below = fs::canonical(home, ignored).lexically_relative(fs::canonical(bind.source, ignored));
  if (!below.empty() && *below.begin() != "..")
    throw usage_error("cannot bind " + quote(bind.source) + ": dsec's own " + quote(home.native()) + " lies in it")
        .hint("bind the folders in it that are needed, or give dsec another home by DSEC_HOME");
}

}  // namespace

void check_smallest(const Limits& limits) {
  if (limits.memory && *limits.memory < kLeastMemory)
    throw usage_error("a memory limit of " + format_size(*limits.memory) + " is too small")
        .hint("use at least " + format_size(kLeastMemory));
  if (limits.pids && *limits.pids < kLeastTasks)
    throw usage_error("a limit of " + std::to_string(*limits.pids) + " processes is too small")
        .hint("use at least " + std::to_string(kLeastTasks) + ", for PID 1 and a command");
}

void check_tmpfs(const SandboxSpec& spec) {
  for (const TmpfsMount& mount : spec.tmpfs)
    if (!mount.target.starts_with('/') || mount.target == "/")
      throw usage_error("a filesystem in memory needs an absolute path below '/', not " + quote(mount.target));
}

void check_mounts(const SandboxSpec& spec, const fs::path& home) {
  for (const BindMount& bind : spec.binds) check_bind(bind, home);
  check_tmpfs(spec);
  if (spec.binds.size() + spec.tmpfs.size() > kMostMounts)
    throw usage_error("at most " + std::to_string(kMostMounts) + " binds are possible");
}

}  // namespace dsec::runners
