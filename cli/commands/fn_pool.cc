#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/function_flags.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  FunctionFlags function;
  bool fill = false, drain = false;
};

void run(const Options& options, Invocation& call) {
  if (options.fill && options.drain) throw usage_error("--fill and --drain exclude each other");
  const FunctionType type = find_function(call, options.function, options.function.type);
  engine::FunctionPool pool(call.wiring().local_engine(), call.wiring().home(), type);
  if (options.fill || options.drain) require_root("fn pool");
  if (options.drain) pool.drain();
  if (options.fill) {
    if (type.spec.pool == 0)
      throw usage_error("function " + quote(type.spec.name) + " has no pool").hint("give it `pool: N` in dsec.yaml");
    const std::atomic<bool> stop = false;
    pool.fill(stop);
  }
  const std::size_t ready = pool.ready();
  if (call.out().json())
    return call.out().json(
        {{"name", type.spec.name}, {"digest", type.digest().str()}, {"ready", ready}, {"wanted", type.spec.pool}});
  call.out().line(std::to_string(ready) + " of " + std::to_string(type.spec.pool) + " ready");
}

}  // namespace

void add_fn_pool(Command& fn) {
  auto options = std::make_shared<Options>();
  Command& verb = fn.verb("pool", "Show, fill or empty the pool of a function");
  verb.reaches(Command::Reach::Local);
  verb.positional("TYPE", options->function.type, "Function of dsec.yaml");
  declare(verb, options->function);
  verb.flag("--fill", options->fill, "Make sandboxes until as many are ready as the function wants");
  verb.flag("--drain", options->drain, "Remove those that are ready");
  verb.note("Calls fill the pool again by themselves.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
