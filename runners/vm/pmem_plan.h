#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/engine/layer_mounter.h"
#include "core/model/pmem_use.h"

namespace dsec::runners {

/// Which of the images of a stack are memory of the guest, in which this host has cached them; the others are drives.
/// Mapped can be what is uncompressed and whose files lie below `store`, which are this host's own. `memory`: of the
/// guest, from which its kernel takes the structures of the pages. Throws Error when `use` is On and that has not
/// enough of it, or nothing can be mapped.
std::vector<bool> choose_mapped(PmemUse use, const std::vector<engine::ImageFiles>& images,
                                const std::filesystem::path& store, std::uint64_t memory);

/// Makes a file longer by a hole, so that it can be memory of a guest. Whoever has it open or mapped sees all that was
/// there before, and two that do so at once do the same. Returns its size. Throws Error.
std::uint64_t make_mappable(const std::filesystem::path& file);

}  // namespace dsec::runners
