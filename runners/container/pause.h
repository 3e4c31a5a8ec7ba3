#pragma once

#include <filesystem>
#include <memory>

#include "core/engine/runner.h"

namespace dsec::runners {

/// What Runner promises under these names; the keeper does it. Throw Error.
void pause_sandbox(const std::filesystem::path& directory);
void resume_sandbox(const std::filesystem::path& directory);
std::unique_ptr<engine::Stillness> hold_sandbox_still(const std::filesystem::path& directory);

}  // namespace dsec::runners
