#pragma once

#include <functional>
#include <span>

#include "core/base/digest.h"

namespace dsec {
class Progress;
}

namespace dsec::cli {

class Wiring;

/// For registry::EvictOptions; empty where nothing can be mounted.
std::function<void(std::span<const Digest> needed)> unmount_others(Wiring& wiring);

/// Called after a command that has brought layers here: evicts data until the store is within the limit of config.yaml,
/// and warns with what holds the rest. What fails is told as a warning, too.
void keep_store_limit(Wiring& wiring, Progress& progress) noexcept;

}  // namespace dsec::cli
