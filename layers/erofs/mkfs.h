#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace dsec::layers {

/// The mkfs.erofs that images are written with.
struct Mkfs {
  std::filesystem::path program;
  std::string version;  ///< "1.9.4"

  /// Looks at $DSEC_MKFS_EROFS, then at ../libexec/dsec/ beside the running program, then in PATH. Throws Error with
  /// what to do when there is none or when it cannot be used.
  static Mkfs find();
};

/// How `version` suits: 1.7 brought tar mode, 1.8.7 and 1.8.8 write damaged images, and from 1.9.3 on extended
/// attributes have a canonical order and negative fractions of a second are right.
enum class MkfsFitness { Good, Old, Unusable };
MkfsFitness fitness_of_mkfs(std::string_view version);

}  // namespace dsec::layers
