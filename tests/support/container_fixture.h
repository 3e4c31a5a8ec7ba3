#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/engine/home.h"
#include "core/engine/lease.h"
#include "core/engine/runner.h"

namespace dsec::test {

/// A DSEC_HOME of its own with a container runner, and sandboxes on a small tree around a static busybox; everything
/// goes away at the end of the test.
class ContainerFixture {
 public:
  ContainerFixture();
  ~ContainerFixture();

  /// Starts a sandbox with its lease, as the engine does; returns its directory.
  std::filesystem::path start(const SandboxSpec& spec = {});

  /// The same in a directory that is there, and without a lease.
  void start_at(const std::filesystem::path& directory, const SandboxSpec& spec);

  struct Outcome {
    std::string out, err;
    ExecResult result;
  };
  Outcome run(const std::filesystem::path& directory, const ExecSpec& spec);
  Outcome run(const std::filesystem::path& directory, const std::string& script);
  /// Reads a stream to its end.
  static Outcome finish(engine::ExecStream& stream, const std::string& input = {});

  engine::Runner& runner() { return *runner_; }
  const engine::Home& home() const { return *home_; }
  /// The tree that is the sandboxes' only layer.
  std::filesystem::path tree() const { return work_.path() / "tree"; }
  const std::filesystem::path& work() const { return work_.path(); }

  /// Processes whose cgroup or command line names a sandbox of this home.
  std::vector<std::string> processes() const;
  /// cgroups named after a sandbox of this home.
  std::vector<std::string> cgroups() const;

 private:
  TempDirectory work_;
  std::optional<engine::Home> home_;
  std::unique_ptr<engine::Runner> runner_;
  std::vector<std::filesystem::path> directories_;
};

ExecSpec command(std::vector<std::string> argv);
ExecSpec shell(std::string script);

/// Waits until `condition` holds, for at most `timeout`.
template <typename Condition>
bool eventually(Condition&& condition, std::chrono::milliseconds timeout = std::chrono::seconds(10));

}  // namespace dsec::test

#include <thread>

template <typename Condition>
bool dsec::test::eventually(Condition&& condition, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}
