#include "cli/replay_sandbox.h"

#include <exception>

#include "core/base/error.h"
#include "core/engine/memory_snapshots.h"
#include "core/engine/replay.h"

namespace dsec::cli {
namespace {

// Whoever wrote a trajectory elsewhere says what its sandbox is made of, and what runs in it.
void refuse_parts_of_the_host(const SandboxSpec& spec, const engine::Trajectory& trajectory, const engine::Home& home,
                              const std::string& what) {
  // One of this home was recorded here, unless it says where it came from.
  if (trajectory.header.source.empty() && trajectory.directory.parent_path() == home.trajectories()) return;
  std::string wanted;
  const auto want = [&](const std::string& part) { wanted += (wanted.empty() ? "" : ", ") + part; };
  for (const BindMount& bind : spec.binds) want("path " + quote(bind.source));
  for (const DeviceGrant& device : spec.devices) want("device " + quote(device.source));
  if (spec.gpus) want("some of its devices");
  if (spec.network == NetworkMode::Host) want("its network");
  if (spec.network == NetworkMode::Policy) want("what its network policy allows to be reached");
  if (spec.userns == UserNamespace::Host) want("its user ids");
  const auto secrets = [&](const NetworkPolicy& policy) {
    for (const HeaderSecret& secret : policy.inject) want("the secret " + quote(secret.secret));
  };
  secrets(spec.network_plan.base);
  for (const auto& [phase, policy] : spec.network_plan.phases) secrets(policy);
  if (wanted.empty()) return;
  throw usage_error("it comes from elsewhere, and its sandbox would get of this host: " + wanted)
      .context("cannot replay " + quote(what))
      .hint("give --trust if you trust whoever made it");
}

}  // namespace

ReplaySandbox::ReplaySandbox(engine::Engine& engine, const engine::Home& home, const engine::Trajectory& trajectory,
                             ReplaySandboxOptions options)
    : engine_(engine), recorded_id_(trajectory.header.id), keep_(options.keep) {
  SandboxSpec spec = engine::replay_spec(trajectory.header);
  if (spec.layers.empty())
    throw failure("it does not tell what the sandbox was made of")
        .context("cannot replay " + quote(options.what))
        .hint("import it with what it shall run in: dsec traj import FILE --in ENV");
  if (const auto memory = spec.labels.find(engine::kMemoryOfLabel); memory != spec.labels.end())
    throw usage_error("it went on from the memory of sandbox " + memory->second + ", which no layer has")
        .context("cannot replay " + quote(options.what))
        .hint("dsec replay " + memory->second + ", from whose beginning on all is recorded");
  if (!options.trust) refuse_parts_of_the_host(spec, trajectory, home, options.what);
  spec.remove_at_end = !keep_;
  id_ = attempt("cannot replay " + quote(options.what), [&] { return engine.create(spec).id; });
}

ReplaySandbox::~ReplaySandbox() {
  try {
    if (!keep_) engine_.remove(id_, true);
  } catch (const std::exception&) {
    // It is marked to go at its end: gc does it.
  }
}

void ReplaySandbox::add_names(engine::Normaliser& normaliser) const {
  normaliser.add_literal(recorded_id_, "<sandbox>");
  normaliser.add_literal(id_, "<sandbox>");
}

}  // namespace dsec::cli
