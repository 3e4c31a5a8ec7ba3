#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "layers/source.h"

namespace dsec::layers {

/// `overlaybd:FILE[,FILE…]`, the lowest layer first: the tree of the EROFS file system that their device holds. The
/// device is composed into an unlinked file in `spool`, as large as what it has. Other file systems, and files that are
/// compressed in the file system, are refused by name.
std::unique_ptr<Source> open_overlaybd_source(std::vector<std::filesystem::path> files, std::filesystem::path spool);

}  // namespace dsec::layers
