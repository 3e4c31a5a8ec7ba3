#include <unistd.h>

#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/obd_flags.h"
#include "core/base/error.h"
#include "layers/overlaybd/device_image.h"

namespace dsec::cli {
namespace {

namespace obd = layers::overlaybd;

void run(const std::vector<std::string>& files, Invocation& call) {
  if (::isatty(STDOUT_FILENO) == 1)
    throw usage_error("an image is not written to a terminal").hint("send it to a file, or use a pipe");
  const obd::Stack stack = obd::Stack::open(to_paths(files));
  attempt("cannot write the image", [&] { obd::write_image(stack, STDOUT_FILENO, call.progress()); });
}

}  // namespace

void add_obd_cat(Command& group) {
  auto files = std::make_shared<std::vector<std::string>>();
  Command& verb = group.verb("cat", "Write the device that layers make to standard output");
  verb.positionals("FILE", *files, "Layers, the lowest first; of a writable one its data and its index file");
  verb.note("When standard output is a file, zeros become holes in it.");
  verb.example("dsec obd cat base.obd top.data top.index > disk.img");
  verb.runs([files](Invocation& call) { run(*files, call); });
}

}  // namespace dsec::cli
