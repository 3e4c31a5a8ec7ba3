#pragma once

#include <functional>
#include <memory>

#include "core/base/json.h"
#include "core/engine/blob_loader.h"
#include "core/engine/home.h"
#include "registry/layout/prefetch_list.h"
#include "registry/store/local_store.h"

namespace dsec::registry {

/// The loader of a home, a program that is started when it is needed. `open_procs` opens cgroup.procs of the group that
/// it shall live in.
std::unique_ptr<engine::BlobLoader> make_blob_loader(const engine::Home& home, std::function<UniqueFd()> open_procs);

/// What the loader of a home that runs says of itself: "blobs", each with "layer", "bytes", "here" and "fetched", and
/// "problems", each with "what", "count" and "last". Null when none runs. Throws Error when it does not answer.
Json loader_status(const std::filesystem::path& home);

/// Which chunks were read of the blobs that the loader of a home serves, in the order in which they first were, by the
/// blob. Empty when none runs. Throws Error when it does not answer.
std::vector<PrefetchList::OfBlob> loader_record(const std::filesystem::path& home);

/// Of layers that are, or were, loaded on demand: "bytes" of their data, and "fetched" of these by the loader that
/// runs. Null when all of it came at once.
Json on_demand_use(LocalStore& store, std::span<const Digest> layers);

}  // namespace dsec::registry
