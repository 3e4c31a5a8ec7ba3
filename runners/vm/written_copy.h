#pragma once

#include <cstdint>
#include <filesystem>

#include "core/engine/written_copy.h"
#include "runners/container/written_tar.h"

namespace dsec::runners {

/// Lets what runs in the guest of `directory` stand still while its writable layer comes through the channel, into
/// files below `directory` that are removed with the copy. `most`: bytes that are taken of a guest, which may say
/// anything. Throws Error.
engine::WrittenCopy copy_written_layer(const std::filesystem::path& directory, Below below, std::uint64_t most);

}  // namespace dsec::runners
