#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "registry/store/local_store.h"

namespace dsec::cli {
namespace {

void mount(std::vector<std::string> words, Invocation& call) {
  const std::string directory = words.back();
  words.pop_back();
  require_root("layer mount");
  std::vector<engine::StoredLayer> layers;
  for (const auto& ref : words) layers.push_back(call.wiring().store().get(LayerRef::parse(ref)));
  call.wiring().mounter().mount_at(layers, directory);
}

}  // namespace

void add_layer_mount(Command& layer) {
  auto words = std::make_shared<std::vector<std::string>>();
  Command& verb = layer.verb("mount", "Show layers as one read-only tree on this host");
  verb.positionals("REF", *words, "Layers, bottom to top, and at the end the directory", 2);
  verb.note("Needs root. The tree stays until dsec layer umount.");
  verb.example("dsec layer mount base/debian:12 workspace/toolz /mnt");
  verb.runs([words](Invocation& call) { mount(*words, call); });
}

void add_layer_umount(Command& layer) {
  auto directory = std::make_shared<std::string>();
  Command& verb = layer.verb("umount", "Take a tree of dsec layer mount away");
  verb.positional("DIR", *directory, "Where it is mounted");
  verb.runs([directory](Invocation& call) {
    require_root("layer umount");
    call.wiring().mounter().unmount_at(*directory);
  });
}

}  // namespace dsec::cli
