#pragma once

#include <filesystem>
#include <string_view>

#include "core/engine/home.h"

namespace dsec::engine {

/// Makes the directory `target` in the home, mode 0700, such that the inodes of those made one after the other lie in
/// different regions of the disk, and so do those of all that is made in them. `key`: any text that differs.
///
/// Before ext4 takes an inode it looks at each in the same block group that was deleted in the last minutes, and
/// directories beside each other share a group. Where sandboxes come and go, that becomes most of the work of making
/// one. So they are born in one of several directories (run/births), which ext4 keeps apart because the directory above
/// them has the attribute T of chattr(1), and then moved. Elsewhere this changes nothing. Throws Error.
void make_spread_directory(const Home& home, const std::filesystem::path& target, std::string_view key);

}  // namespace dsec::engine
