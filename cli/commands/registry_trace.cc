#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attend.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/registry_flags.h"
#include "cli/root.h"
#include "cli/sandbox_flags.h"
#include "cli/trace_home.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/loader/loader_client.h"
#include "registry/publish.h"
#include "registry/registries.h"
#include "registry/store/chunk_digests.h"

namespace dsec::cli {
namespace {

using Clock = std::chrono::steady_clock;
using registry::PrefetchList;

struct Options {
  SandboxFlags sandbox;
  RegistryFlag to;
  std::vector<std::string> command;
  std::optional<std::chrono::milliseconds> timeout;
  bool dry_run = false;
};

/// A layer that was loaded on demand, and what was read of it.
struct Traced {
  std::string name;
  std::uint64_t bytes = 0, read = 0;  ///< of its data
  PrefetchList list;
  bool published = false;
};

struct Trace {
  std::vector<Traced> layers;
  std::uint64_t fetched = 0;
  std::chrono::milliseconds first_command{};  ///< from the beginning of the pull to the end of the command
};

registry::RegistryAddress target_of(const Options& options) {
  RegistryFlag to = options.to;
  if (to.text.empty() && options.sandbox.registries.size() == 1) to.text = options.sandbox.registries.front();
  return find(to);
}

void require_success(const ExecResult& result, const std::string& program) {
  if (result.cause == ExecResult::Cause::Exited && result.exit_code == 0) return;
  throw failure(quote(program) + " ended with " + std::to_string(result.shell_code()))
      .context("what it read is not recorded")
      .hint("if that is as it should be: -- sh -c '… || true'");
}

void run_command(const Options& options, const SandboxSpec& spec, Wiring& wiring) {
  engine::Engine& engine = wiring.local_engine();
  ExecSpec exec{.argv = engine::main_command(spec.config, options.command), .env = {}, .main = true};
  exec.timeout = options.timeout;
  exec.operation = operation_context("");
  const ForwardedSignals signals;
  const std::string id = engine.create(spec).id;
  require_success(attend(*engine.exec(id, exec), {.only_stderr = true}), exec.argv.front());
}

// Of layers in the order of the stack; what nothing was read of gets a list, too, which says so.
std::vector<Traced> traced_layers(registry::LocalStore& store, std::span<const Digest> layers,
                                  const std::vector<PrefetchList::OfBlob>& record) {
  std::map<Digest, const PrefetchList::OfBlob*> read;
  for (const PrefetchList::OfBlob& each : record) read.emplace(each.blob, &each);
  std::vector<Traced> all;
  for (const Digest& layer : layers) {
    const engine::StoredLayer stored = store.get(LayerRef::of(layer));
    Traced traced{stored.manifest.name.str(), 0, 0, {layer, {}}, false};
    std::size_t left = registry::kMostPrefetchRuns;
    for (const LayerImage& image : stored.manifest.images) {
      const Blob* const data = image.find(BlobRole::Data);
      if (!data || !store.on_demand(data->digest)) continue;
      traced.bytes += data->size;
      const auto found = read.find(data->digest);
      if (found == read.end()) continue;
      PrefetchList::OfBlob blob = *found->second;
      if (blob.runs.size() > left) blob.runs.resize(left);
      left -= blob.runs.size();
      // The last chunk may be shorter than the others.
      for (const registry::ChunkRun& run : blob.runs)
        traced.read +=
            std::min(data->size, (run.first + run.count) * registry::kChunkSize) - run.first * registry::kChunkSize;
      traced.list.blobs.push_back(std::move(blob));
      read.erase(found);
    }
    if (traced.bytes > 0) all.push_back(std::move(traced));
  }
  return all;
}

Trace trace(const Options& options, Invocation& call) {
  TraceHome home(call.wiring().home());
  Invocation inner(home.wiring(), call.out().format());
  SandboxFlags flags = options.sandbox;
  flags.on_demand = true;
  const auto began = Clock::now();
  const SandboxSpec spec = compose(inner, flags);
  // It must not end before it was asked.
  const auto visit = home.wiring().loader().visit();
  run_command(options, spec, home.wiring());
  Trace result;
  result.first_command = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  registry::LocalStore& store = home.wiring().store();
  result.layers = traced_layers(store, spec.layers, registry::loader_record(store.home().root()));
  if (const Json use = registry::on_demand_use(store, spec.layers); !use.is_null())
    result.fetched = json_u64(use, "fetched");
  if (result.layers.empty())
    throw failure("none of the layers has contents that can be loaded on demand").hint("compressed layers come whole");
  if (options.dry_run) return result;
  for (Traced& each : result.layers)
    each.published = registry::publish_prefetch_list(store, each.list, target_of(options), call.progress());
  return result;
}

std::string share(std::uint64_t part, std::uint64_t whole) {
  return format_size(part) + " of " + format_size(whole) + " (" +
         std::to_string(whole ? (part * 100 + whole / 2) / whole : 0) + " %)";
}

void tell(const Trace& trace, Output& out, bool dry_run) {
  Json layers = Json::array();
  std::uint64_t bytes = 0;
  for (const Traced& each : trace.layers) {
    std::size_t runs = 0;
    for (const PrefetchList::OfBlob& blob : each.list.blobs) runs += blob.runs.size();
    bytes += each.bytes;
    layers.push_back({{"name", each.name},
                      {"digest", each.list.layer.str()},
                      {"bytes", each.bytes},
                      {"read", each.read},
                      {"runs", runs},
                      {"published", each.published}});
    if (out.json()) continue;
    out.line(each.name + " " + each.list.layer.brief() + ": read " + share(each.read, each.bytes) + " in " +
             std::to_string(runs) + (runs == 1 ? " piece" : " pieces") +
             (each.published ? ", list published"
              : dry_run      ? ""
                             : ", not in the registry, so no list is published"));
  }
  if (out.json())
    return out.json({{"layers", std::move(layers)},
                     {"bytes", bytes},
                     {"fetched", trace.fetched},
                     {"first_command_ms", trace.first_command.count()}});
  out.line("fetched " + share(trace.fetched, bytes) + "; the command had ended after " +
           format_duration(trace.first_command));
}

void run(const Options& options, Invocation& call) {
  require_root("registry trace");
  // Not only when a long command has ended.
  if (!options.dry_run) registry::require_publishable(call.wiring().store(), target_of(options), call.progress());
  const Trace result = trace(options, call);
  call.end_progress();
  tell(result, call.out(), options.dry_run);
}

}  // namespace

void add_registry_trace(Command& registry) {
  auto options = std::make_shared<Options>();
  Command& verb = registry.verb("trace", "Record what a command reads, so that it is fetched first from then on");
  declare(verb, options->sandbox);
  declare(verb, "--to", "Where the lists go", options->to);
  verb.duration("--timeout", options->timeout, "End the command after so long, and record nothing; 0: never");
  verb.flag("-n,--dry-run", options->dry_run, "Only tell what is read");
  verb.takes_command(options->command);
  verb.note(
      "The command runs in a new sandbox whose layers are pulled anew, on demand; what it says goes to standard error. "
      "A "
      "list of the pieces that it read, in order, is published beside each layer, and dsec pull --on-demand takes it "
      "along. Without --to it goes to the one --registry that is given.");
  verb.example("dsec registry trace --registry file:///srv/registry base/python:3.11 -- python3 -c 'import ssl, json'");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
