#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>

#include "core/engine/engine.h"
#include "core/engine/home.h"
#include "core/model/function_spec.h"

namespace dsec::engine {

/// A sandbox that waits for a call, and is nobody else's any more.
struct ReadySandbox {
  std::string id;
  std::string exec_id;         ///< of the command that waits for its input, with FunctionSpec::preload; else empty
  std::uint64_t cpu_usec = 0;  ///< what making it ready used
};

/// The sandboxes of one function type that wait for calls, shared by all processes of a DSEC_HOME: a file for each in
/// run/functions/<digest>/, named by its id. Who removes the file has the sandbox.
class FunctionPool {
 public:
  /// Both must outlive it.
  FunctionPool(Engine& engine, const Home& home, const FunctionType& type);

  /// One that is ready, if any; the caller removes it after its call. It may have ended meanwhile.
  std::optional<ReadySandbox> take();
  /// Makes a sandbox ready for one call, for the caller.
  ReadySandbox make();
  /// How many wait.
  std::size_t ready() const;
  /// Makes sandboxes until spec.pool are ready or `stop` is set; returns at once when another process does it. Throws
  /// Error when one cannot be made.
  void fill(const std::atomic<bool>& stop);
  /// Removes all that are ready; returns how many.
  std::size_t drain();

 private:
  std::vector<std::string> ids() const;
  bool claim(const std::string& id, ReadySandbox& ready);
  void offer(const ReadySandbox& ready);
  void warm_up(const std::string& id);
  std::string preload(const std::string& id);

  Engine& engine_;
  const FunctionType type_;
  const std::filesystem::path directory_;
};

/// The label of every sandbox that is made for calls, with the name of its type.
inline constexpr const char* kFunctionLabel = "dsec.function";

/// The spec of one call's sandbox.
SandboxSpec sandbox_of(const FunctionType& type);

}  // namespace dsec::engine
