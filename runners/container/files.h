#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/engine/engine.h"
#include "runners/isolation/id_map.h"

namespace dsec::runners {

/// The files of a sandbox as this process reaches them. What runs inside may change them at any moment, and may want to
/// harm: no path is ever resolved out of `root`, nothing is opened that could block or act, and the work is done with
/// no more privileges over files than root of the sandbox has.
struct SandboxFiles {
  int root;   ///< its /: /proc/<pid 1>/root, or a detached mount of its composed tree. Not owned
  IdMap ids;  ///< ids seen through `root` are outside ones; {0, 0xffffffff} when they are those of inside already
};
inline constexpr IdMap kUnmappedIds{.first = 0, .count = 0xffffffff};

struct PackOptions {
  std::string name;                    ///< of the top entry; empty: the last component of the path
  std::optional<std::uint32_t> owner;  ///< of all entries, user and group, instead of what the files have
};

/// Writes the file or tree at `path` (inside, absolute; a symlink at its end is copied as such) as a pax tar stream to
/// `fd`. Entries are named by the last component of the path, or "." when that is none (/, ..). Hard links, sparse
/// files, FIFOs and device nodes come as such, sockets and what is mounted below do not come. Throws Error.
void copy_out(const SandboxFiles& files, const std::string& path, int fd, const PackOptions& options = {});

struct UnpackOptions {
  std::string name;  ///< the stream's top entry, whatever it is called there, becomes this
  /// All belongs to this user and group instead of whom the stream says; then nothing is setuid, setgid or has
  /// capabilities, since that was meant for another owner.
  std::optional<std::uint32_t> owner;
};

/// Unpacks a tar stream into the existing directory `path`. Owners are those that the stream says, as seen inside.
/// Existing directories are kept, other existing files replaced. Symlinks that the sandbox has are followed within it;
/// an entry that is absolute, has a "..", or would go through a symlink of the same stream throws Error naming it, and
/// so does a device. What was unpacked before stays.
void copy_in(const SandboxFiles& files, const std::string& path, int fd, const UnpackOptions& options = {});

/// What the writable layer `upper` (in overlayfs form) changes of the tree `lower` that lies below it, sorted by path.
/// A directory that was replaced as a whole shows what it hides. Both descriptors are of readable directories.
std::vector<engine::Change> diff_layer(int upper, int lower);

}  // namespace dsec::runners
