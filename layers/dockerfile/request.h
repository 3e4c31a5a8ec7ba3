#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "layers/dockerfile/dockerfile.h"
#include "layers/dockerfile/ignore.h"

namespace dsec::layers::dockerfile {

/// What `dockerfile:DIR[?file=FILE&target=STAGE&network=none|host&arg.NAME=VALUE]` asks for.
struct Request {
  std::filesystem::path directory;  ///< the build context
  std::string file = "Dockerfile";  ///< in it
  std::string target;               ///< a stage; empty: the last one
  bool host_network = false;        ///< RUN has the host's network, unless its --network says otherwise
  std::map<std::string, std::string> args;

  /// Whether a source is of this kind.
  static bool is_one(std::string_view source) { return source.starts_with("dockerfile:"); }
  /// The whole source; a relative DIR begins at `base` (empty: the current directory). Throws Error (Usage).
  static Request parse(std::string_view source, const std::filesystem::path& base);

  /// Throws Error naming the file, or its line.
  Dockerfile read() const;
  /// FILE.dockerignore, or else .dockerignore; an empty list where there is neither.
  IgnoreList read_ignore_list() const;
};

}  // namespace dsec::layers::dockerfile
