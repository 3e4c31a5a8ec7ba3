#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// openat2(2) that treats `root` as /: neither "..", symlinks nor the magic links of /proc lead out of it. An invalid
/// descriptor with errno set when it fails; the kernel's EAGAIN (somebody renames meanwhile) is tried again.
UniqueFd open_in_root(int root, const std::string& path, int flags) noexcept;

/// The non-empty components of a path without "."; ".." stays.
std::vector<std::string> path_components(std::string_view path);

/// Opens the file that an O_PATH descriptor refers to, and no other: a name could mean another file meanwhile.
UniqueFd reopen(int path_descriptor, int flags) noexcept;

/// Names in a directory without "." and "..", sorted. The descriptor may be an O_PATH one. Throws Error.
std::vector<std::string> sorted_names(int directory);

}  // namespace dsec::runners
