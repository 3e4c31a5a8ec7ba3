#pragma once

#include <span>
#include <string>

#include "core/engine/branching.h"

namespace dsec::cli {

/// Lines as `git diff --stat` prints them, at most 80 columns wide unless names are longer, and their sum.
std::string diff_stat(std::span<const engine::FileChange> changes);

}  // namespace dsec::cli
