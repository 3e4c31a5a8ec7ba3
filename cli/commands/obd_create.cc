#include "layers/overlaybd/create.h"

#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/obd_flags.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

namespace obd = layers::overlaybd;

struct Options {
  std::optional<std::string> from;
  std::optional<std::uint64_t> size;
  std::vector<std::string> below, out;
  NewLayerFlags layer;
};

void run(const Options& options, Invocation& call) {
  if (options.out.size() > 2) throw usage_error("a layer is one file, or two: DATA and INDEX");
  obd::NewDevice device;
  if (options.from) device.raw = *options.from;
  device.below = to_paths(options.below);
  device.size = options.size;
  device.layer = new_layer(options.layer);
  if (options.out.size() == 1)
    return write_layer(options.out[0], call, [&](int fd) { return obd::create_sealed(device, fd, call.progress()); });
  if (device.layer.packing.compression || device.layer.packing.tar)
    throw usage_error("a writable layer is neither compressed nor in an archive");
  const obd::Written written = attempt("cannot make writable layer '" + options.out[0] + "'", [&] {
    return obd::create_writable(device, options.out[0], options.out[1], call.progress());
  });
  tell_layer(options.out[0], written, call);
}

}  // namespace

void add_obd_create(Command& group) {
  auto options = std::make_shared<Options>();
  Command& verb = group.verb("create", "Make a sealed layer of an image, or a writable one");
  verb.positionals("FILE", options->out, "The sealed layer; or data and index file of a writable one");
  verb.option("--from", "FILE", options->from,
              "An image of the device: a file, whose holes are zeros, or a block device");
  verb.size("--size", options->size, "Of the device (default: that of the image, or of the layers below)");
  verb.options("--parent", "FILE", options->below, "A layer below, the lowest first: only what differs is kept");
  declare(verb, options->layer);
  verb.note("The same image and options give the same sealed layer. A writable one has a new UUID.");
  verb.example("dsec obd create --from disk.img --compress zfile:lz4 base.obd");
  verb.example("dsec obd create --from newer.img --parent base.obd change.obd");
  verb.example("dsec obd create --parent base.obd --parent change.obd top.data top.index");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
