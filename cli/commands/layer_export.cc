#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/obd_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/compose/export_device.h"
#include "layers/compose/export_layer.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string ref, out, format = "tar", compression = "none";
};

// Its header is written last, so it cannot go into a pipe.
void export_device(const Options& options, Invocation& call) {
  if (options.out.empty() || options.out == "-")
    throw usage_error("an OverlayBD layer is written to a file").hint("give one with --out");
  layers::overlaybd::NewLayer wanted;
  wanted.packing.compression = layers::overlaybd::Packing::parse_compression(options.compression);
  const engine::StoredLayer layer = call.wiring().layer_store().get(LayerRef::parse(options.ref));
  write_layer(options.out, call, [&](int fd) {
    return layers::export_device(call.wiring().layer_store(), layer, fd, wanted, call.progress());
  });
}

void run(const Options& options, Invocation& call) {
  if (options.format == "overlaybd") return export_device(options, call);
  if (options.compression != "none") throw usage_error("--compress goes with --format overlaybd");
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
  Command& verb = layer.verb("export", "Write the files of a layer as a tar archive, or as a block device");
  verb.positional("REF", options->ref, "The layer");
  verb.option("--out", "FILE", options->out, "Where to (default: standard output)");
  verb.choice("--format", options->format, {"tar", "overlaybd"}, "An archive, or an OverlayBD layer that holds EROFS");
  verb.choice("--compress", options->compression, {"none", "zfile:lz4", "zfile:zstd"}, "Compress the OverlayBD layer");
  verb.note("Deletions come as an OCI layer has them (.wh. names). The same layer gives the same bytes.");
  verb.example("dsec layer export base/debian:12 | tar t");
  verb.example("dsec layer export base/debian:12 --format overlaybd --out debian.obd");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
