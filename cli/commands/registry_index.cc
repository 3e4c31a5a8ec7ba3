#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/image_index.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "registry/index.h"
#include "registry/store/local_store.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string name, image, platform;
};

struct Done {
  LayerRef ref;
  engine::ImageIndex index;
  registry::RegistryAddress place;
  registry::IndexResult published = {};
};

LayerRef new_layer(const std::string& name) {
  LayerRef ref = LayerRef::parse(name);
  if (!ref.name || !ref.tag)
    throw usage_error(quote(name) + " is no name for a new layer").hint("write KIND/NAME or KIND/NAME:TAG");
  return ref;
}

std::string reference_of(const std::string& image) {
  constexpr std::string_view kScheme = "docker:";
  if (!image.starts_with(kScheme))
    throw usage_error(quote(image) + " is no image of a registry").hint("docker://HOST/REPOSITORY[:TAG|@DIGEST]");
  return image.substr(kScheme.size());
}

Done make(const Options& options, Invocation& call) {
  const LayerRef ref = new_layer(options.name);
  const std::string reference = reference_of(options.image);
  registry::RegistryAddress place = registry::registry_beside(reference);
  // What is made goes to the registry, and nothing of it stays here.
  const TempDirectory folder(call.wiring().home().cache());
  Wiring wiring(folder.path());
  registry::require_publishable(wiring.store(), place, call.progress());
  return attempt("cannot index " + options.image, [&] {
    const auto session = wiring.layer_store().begin_session();
    Done done{ref, index_image(wiring, *session, ref, reference, options.platform, call.progress()), std::move(place)};
    done.published = registry::publish_index(wiring.store(), done.index, *ref.tag, done.place, call.progress());
    return done;
  });
}

void run(const Options& options, Invocation& call) {
  const Done done = make(options, call);
  call.end_progress();
  const Digest digest = done.index.layer.digest();
  const std::string name = done.ref.name->str() + ":" + *done.ref.tag;
  if (call.out().json())
    return call.out().json({{"ref", name},
                            {"digest", digest.str()},
                            {"registry", done.place.url()},
                            {"image", done.index.image.digest.str()},
                            {"bytes", done.index.layer.total_size()},
                            {"bytes_in_image", done.published.bytes_in_image},
                            {"bytes_copied", done.published.bytes_copied}});
  call.out().line(name + " " + digest.str() + ": " + format_size(done.published.bytes_in_image) +
                  " stay in the image, " + format_size(done.published.bytes_copied) + " published beside it");
  call.out().line("dsec run --on-demand --registry " + done.place.url() + " " + name + " -- COMMAND");
}

}  // namespace

void add_registry_index(Command& registry) {
  auto options = std::make_shared<Options>();
  Command& verb = registry.verb("index", "Make an image of a registry a layer there, without a copy of its contents");
  verb.positional("NAME", options->name, "KIND/NAME[:TAG] of the new layer; KIND: base, workspace, toolkit");
  verb.positional("IMAGE", options->image, "docker://HOST/REPO[:TAG|@DIGEST], whose layers are not compressed");
  verb.option("--platform", "OS/ARCH", options->platform, "Which image of an index (default: this host's)");
  verb.note(
      "The layer is the one that dsec import makes of the image, and stands in the image's own repository. Its "
      "metadata "
      "is published; the contents of files are read out of the layers of the image, where they lie.");
  verb.example("dsec registry index base/python:3.11 docker://registry.example/team/python:3.11");
  verb.example("dsec run --on-demand --registry oci://registry.example/team/python base/python:3.11 -- python3 -V");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
