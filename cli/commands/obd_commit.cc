#include "layers/overlaybd/commit.h"

#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/obd_flags.h"

namespace dsec::cli {
namespace {

namespace obd = layers::overlaybd;

struct Options {
  std::vector<std::string> files;
  NewLayerFlags layer;
};

void run(const Options& options, Invocation& call) {
  std::vector<std::filesystem::path> files = to_paths(options.files);
  files.pop_back();
  const obd::NewLayer layer = new_layer(options.layer);
  write_layer(options.files.back(), call,
              [&](int fd) { return obd::commit(obd::Stack::open(files), fd, layer, call.progress()); });
}

}  // namespace

void add_obd_commit(Command& group) {
  auto options = std::make_shared<Options>();
  Command& verb = group.verb("commit", "Make one sealed layer of a writable one, or of several");
  verb.positionals("FILE", options->files,
                   "DATA INDEX OUT: a writable layer and the new one; or LAYER... [DATA INDEX] OUT, the lowest first",
                   2);
  declare(verb, options->layer);
  verb.note(
      "Of several layers only what shows is kept. The new layer has the UUID of the highest and belongs on what the "
      "lowest "
      "belongs on. The layers stay as they are.");
  verb.example("dsec obd commit top.data top.index change.obd --compress zfile:zstd");
  verb.example("dsec obd commit base.obd change.obd flat.obd");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
