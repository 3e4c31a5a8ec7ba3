#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::layers::dockerfile {

/// A `--mount` of a RUN: what the command sees at a path beside the stage's own files, and what never gets into the
/// layer.
struct RunMount {
  enum class Kind {
    Bind,    ///< files of the context, a stage or an image
    Cache,   ///< a folder that builds on this host share
    Tmpfs,   ///< empty, in memory
    Secret,  ///< a file or variable that whoever builds gives
  };
  enum class Sharing { Shared, Private, Locked };

  Kind kind = Kind::Bind;
  std::string target;  ///< absolute; empty: a secret that is a variable alone
  bool writable = false;

  std::string source = "/";               ///< Bind: a path in what it is from
  std::string from;                       ///< Bind: a stage or image as it is written; empty: the context
  std::optional<std::size_t> from_stage;  ///< index in Plan::stages
  std::string from_image;

  std::string id;  ///< Cache, Secret
  Sharing sharing = Sharing::Shared;
  std::optional<std::uint32_t> uid, gid, mode;  ///< Cache, when it is new; Secret
  std::uint64_t size = 0;                       ///< Tmpfs: bytes; 0: the kernel's default
  bool required = false;                        ///< Secret
  std::string variable;                         ///< Secret: its name in the environment; empty: a file
};

/// "type=cache,target=/root/.cache": `expanded` replaces variables in a value, a relative target lies in `workdir`.
/// from_stage and from_image are left to the caller. Throws Error (Usage).
RunMount parse_run_mount(std::string_view text, const std::string& workdir,
                         const std::function<std::string(const std::string&)>& expanded);

/// The value of `from`, as it is written; empty when there is none.
std::string mounted_from(std::string_view text);

}  // namespace dsec::layers::dockerfile
