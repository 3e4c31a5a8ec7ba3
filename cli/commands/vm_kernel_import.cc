#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/layer_archive.h"
#include "cli/vm_kernel_json.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/vm/kernel_store.h"

namespace dsec::cli {
namespace fs = std::filesystem;
namespace {

struct Options {
  std::string source, name;
};

runners::GuestKernel import(const Options& options, Invocation& call) {
  const engine::Home& home = call.wiring().home();
  if (fs::exists(options.source)) return runners::import_kernel(home.root(), options.source, options.name);
  // A path that is not there is no layer.
  const bool path =
      options.source.starts_with('/') || options.source.starts_with('.') || options.source.ends_with(".deb");
  if (path) throw usage_error("there is no file " + quote(options.source));
  make_directories(home.run(), 0700);
  const TempDirectory temporary(home.run());
  const fs::path archive = temporary.path() / "layer.tar";
  write_layer_archive(options.source, archive, call);
  return runners::import_kernel(home.root(), archive, options.name);
}

void run(const Options& options, Invocation& call) {
  const runners::GuestKernel kernel = import(options, call);
  if (call.out().json()) return call.out().json(kernel_json(kernel));
  call.out().line(kernel.name);
}

}  // namespace

void add_vm_kernel_import(Command& group) {
  auto options = std::make_shared<Options>();
  Command& verb = group.verb("import", "Take in a kernel and the modules that a guest needs of it");
  verb.positional(
      "SOURCE", options->source,
      "A Debian kernel package, a directory or tar archive with boot/vmlinuz-* and lib/modules, or a layer");
  verb.option("--name", "NAME", options->name, "What it is called here (default: what the kernel calls itself)");
  verb.note(
      "Of the modules only those are kept that a guest needs, and what these need. A kernel of the same name is "
      "replaced; "
      "guests that run go on with the one that they were started with.");
  verb.example("dsec vm kernel import linux-image-6.1.0-50-cloud-amd64_6.1.176-1_amd64.deb");
  verb.example("dsec vm kernel import base/kernel:6.1 --name lts");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
