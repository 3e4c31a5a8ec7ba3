#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/compose/export_layer.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string ref, out;
};

void run(const Options& options, Invocation& call) {
  engine::LayerStore& store = call.wiring().layer_store();
  const engine::StoredLayer layer = store.get(LayerRef::parse(options.ref));
  if (options.out.empty() || options.out == "-") {
    if (::isatty(STDOUT_FILENO) == 1)
      throw usage_error("an archive is not written to a terminal").hint("give a file with --out, or use a pipe");
    layers::export_layer(store, layer, STDOUT_FILENO, call.progress());
    return;
  }
  const std::filesystem::path target = std::filesystem::absolute(options.out);
  // Under its name it is complete or not there at all.
  TempFile file(target.parent_path(), 0644);
  const std::uint64_t bytes = layers::export_layer(store, layer, file.fd(), call.progress());
  file.publish(target);
  call.end_progress();
  if (call.out().json()) call.out().json({{"file", target.native()}, {"bytes", bytes}});
}

}  // namespace

void add_layer_export(Command& layer) {
  auto options = std::make_shared<Options>();
  Command& verb = layer.verb("export", "Write the files of a layer as a tar archive");
  verb.positional("REF", options->ref, "The layer");
  verb.option("--out", "FILE", options->out, "Where to (default: standard output)");
  verb.note("Deletions come as an OCI layer has them (.wh. names). The same layer gives the same bytes.");
  verb.example("dsec layer export base/debian:12 | tar t");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
