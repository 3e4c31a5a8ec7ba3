#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, out, op_id;
};

void run(const Options& options, Invocation& call) {
  const bool to_stdout = options.out == "-";
  if (to_stdout && call.out().json()) throw usage_error("--out - and -o json would both be on standard output");
  if (to_stdout && ::isatty(STDOUT_FILENO)) throw usage_error("a picture is nothing for a terminal").hint("--out FILE");
  const std::string picture = call.wiring().engine().screenshot(options.sandbox, operation_context(options.op_id));
  if (to_stdout) return call.out().raw(picture);
  write_file_atomic(options.out, picture);
  if (call.out().json())
    call.out().json({{"file", options.out}, {"bytes", picture.size()}, {"sha256", Digest::of(picture).hex()}});
}

}  // namespace

void add_vm_screenshot(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = vm.verb("screenshot", "Take a picture of the screen of a fullvm, as PNG");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.option("--out", "FILE", options->out, "Where it goes; -: standard output");
  declare_op_id(verb, options->op_id);
  verb.example("dsec vm screenshot desktop --out screen.png");
  verb.runs([options](Invocation& call) {
    if (options->out.empty()) throw usage_error("where the picture goes is not said").hint("--out FILE");
    run(*options, call);
  });
}

}  // namespace dsec::cli
