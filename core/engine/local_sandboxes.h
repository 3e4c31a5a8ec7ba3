#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/engine.h"
#include "core/engine/runner.h"
#include "core/engine/sandbox_records.h"

namespace dsec::engine {

/// Finds the sandboxes of a home and the backend that runs each. All calls may be made from several threads.
class LocalSandboxes {
 public:
  LocalSandboxes(const Home& home, Runners runners) : records_(home), runners_(std::move(runners)) {}

  SandboxRecords& records() noexcept { return records_; }
  std::filesystem::path directory(const std::string& id) const { return records_.directory(id); }

  /// Throws Error (Usage) naming the backends that there are.
  Runner& runner_of(const SandboxSpec& spec) const;
  /// See Engine::inspect.
  SandboxInfo inspect(const std::string& id) const;
  /// Empty when the sandbox disappears while it is looked at.
  std::optional<SandboxInfo> read(const std::string& id) const;
  std::vector<SandboxInfo> list(const ListFilter& filter) const;

  /// What never changes in a sandbox's life, so that its lease is not read for every command.
  struct Known {
    std::string name;
    std::reference_wrapper<Runner> runner;
  };
  Known remember(const Lease& lease);
  void forget(const std::string& id);
  /// Empty when it is being removed.
  std::optional<Known> known(const std::string& id);

  /// Calls `call` with the backend of a sandbox and its directory.
  template <typename Call>
  auto with(const std::string& id, Call&& call) -> std::invoke_result_t<Call, Runner&, const std::filesystem::path&> {
    const std::string resolved = records_.resolve(id);
    const std::optional<Known> sandbox = known(resolved);
    if (!sandbox) throw usage_error("sandbox " + resolved + " is being removed");
    return std::forward<Call>(call)(sandbox->runner.get(), directory(resolved));
  }

  /// Held while a sandbox is changed. Waits a little: whoever makes a process at this moment shares the lock with it
  /// until its exec.
  FileLock lock_for_change(const std::string& id) const;

 private:
  SandboxRecords records_;
  const Runners runners_;
  std::mutex known_mutex_;
  std::unordered_map<std::string, Known> known_;  ///< by id, those of the sandboxes that were asked for
};

}  // namespace dsec::engine
