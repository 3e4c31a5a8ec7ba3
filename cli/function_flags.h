#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/engine/functions.h"

namespace dsec::cli {

class Command;
class Invocation;

/// Which function type of which dsec.yaml a verb works on. --file names a file of the call here.
struct FunctionFlags {
  std::string type, project = "dsec.yaml";
  std::vector<std::string> args, registries;
};
void declare(Command& command, FunctionFlags& flags);

/// The type with its environment's layers found, or pulled. Throws Error (Usage) with near names.
FunctionType find_function(Invocation& call, const FunctionFlags& flags, const std::string& name);

/// "NAME=PATH", or "PATH" for its own last component; with its permission bits.
FunctionFile read_function_file(const std::string& text);

/// Fills the pool by another process of ours, which goes on when this one has ended.
engine::Functions::Refill refill_by_process(const FunctionFlags& flags);

/// Fills one pool by a thread of this process, whenever it is asked to, until it goes.
class PoolThread {
 public:
  PoolThread(engine::Engine& engine, const engine::Home& home, const FunctionType& type);
  ~PoolThread();
  engine::Functions::Refill refill();

 private:
  struct Shared;
  const std::unique_ptr<Shared> shared_;
};

Json to_json(const FunctionResult& result);

}  // namespace dsec::cli
