#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/layer_json.h"
#include "cli/root.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/disk/bootable.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string name, from, firmware = "bios";
  std::optional<std::uint64_t> size;
  std::vector<std::string> labels;
};

constexpr std::string_view kDebootstrap = "debootstrap:";

void run(const Options& options, Invocation& call) {
  require_root("vm build");
  const LayerRef ref = LayerRef::parse(options.name);
  if (!ref.name || !ref.tag)
    throw usage_error(quote(options.name) + " is no name for a new layer").hint("write base/NAME or base/NAME:TAG");
  if (!options.from.starts_with(kDebootstrap))
    throw usage_error(quote(options.from) + " is nothing that a disk is built from").hint("--from debootstrap:SUITE");
  layers::BootableRequest request;
  request.system = layers::DebootstrapRequest::parse(std::string_view(options.from).substr(kDebootstrap.size()));
  request.system.spool = call.wiring().home().cache();
  request.size = options.size.value_or(request.size);
  request.firmware = options.firmware;
  auto [agent, helper] = Wiring::guest_programs();
  request.agent = std::move(agent);
  request.helper = std::move(helper);
  layers::ImportOptions wanted{.name = *ref.name, .tag = *ref.tag};
  wanted.labels = parse_labels(options.labels);
  const engine::StoredLayer layer =
      layers::build_bootable(call.wiring().layer_store(), request, wanted, call.progress());
  call.end_progress();
  if (call.out().json()) return call.out().json(to_json(layer, false));
  call.out().line(wanted.name.str() + ":" + wanted.tag + " " + layer.digest.str() + " " +
                  format_size(layer.manifest.total_size()));
}

}  // namespace

void add_vm_build(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = vm.verb("build", "Build a disk with a system that a fullvm begins from");
  verb.positional("NAME", options->name, "base/NAME[:TAG] of the new layer");
  verb.option("--from", "debootstrap:SUITE", options->from,
              "A Debian system, with the options that dsec import has for it: debootstrap:bookworm?include=PACKAGES");
  verb.size("--size", options->size, "Size of the disk (default: 4GiB)");
  verb.choice("--firmware", options->firmware, {"bios", "uefi"},
              "What its machines begin with (default: bios); the disk has loaders for both");
  verb.options("-l,--label", "KEY=VALUE", options->labels, "Label of the layer in the store");
  verb.note(
      "The system has the kernel of the suite, systemd, and dsec's agent. Its root has no password: who is at its "
      "screen "
      "or console is in.");
  verb.example("dsec vm build base/desktop --from 'debootstrap:bookworm?include=xserver-xorg-core,xinit,x11-utils'");
  verb.runs([options](Invocation& call) {
    if (options->from.empty())
      throw usage_error("what the disk is built from is not said").hint("--from debootstrap:SUITE");
    run(*options, call);
  });
}

}  // namespace dsec::cli
