#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/base/unique_fd.h"
#include "core/engine/function_pool.h"

namespace dsec::engine {

/// What `compile` made of a call's files: the content of the workdir, as a tar stream in memory.
struct FunctionArtefact {
  UniqueFd tar;  ///< a memfd; empty when the type compiles nothing
};

/// Calls of functions. Every call runs in a sandbox of its own, which is removed after it by a thread of this object
/// (the destructor waits for it). All calls may be made from several threads.
class Functions {
 public:
  /// Fills the pool of a type in the background, where one call does not live long enough to do it.
  using Refill = std::function<void(const FunctionType&)>;
  /// `engine` and `home` must outlive it.
  Functions(Engine& engine, const Home& home, Refill refill);
  ~Functions();
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  /// Compiles, if the type does, and runs. Throws Error (Usage) for a call that makes no sense; all that happens to the
  /// call itself is in the result.
  FunctionResult call(const FunctionType& type, const FunctionCall& call);

  /// The stages one by one, for many runs of one compilation. The artefact is set when the verdict is ok.
  FunctionResult compile(const FunctionType& type, const FunctionCall& call, FunctionArtefact& artefact);
  FunctionResult run(const FunctionType& type, const FunctionCall& call, const FunctionArtefact& artefact);

 private:
  struct Discard {
    Functions& functions;
    const std::string& id;
    ~Discard() { functions.discard(id); }
  };
  ReadySandbox sandbox_for(const FunctionType& type, bool& from_pool);
  void attend(const FunctionType& type, const ReadySandbox& sandbox, ExecSpec spec, const FunctionLimits& limits,
              const std::string& input, FunctionResult& result);
  void discard(const std::string& id) noexcept;
  void remove_discarded();
  void remove(const std::string& id) noexcept;

  Engine& engine_;
  const Home& home_;
  const Refill refill_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> discarded_;
  bool ending_ = false;
  std::thread remover_;
};

}  // namespace dsec::engine
