#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/digest.h"

namespace dsec::registry {

/// Which image of which registry, as docker and podman users write it.
struct ImageReference {
  std::string host;        ///< "docker.io", "registry.example:5000"
  std::string repository;  ///< "library/debian"
  std::string tag;         ///< empty when a digest was given alone
  std::optional<Digest> digest;

  /// "[//]HOST/REPO[:TAG][@DIGEST]". Without a host it is docker.io, whose repositories without '/' are those of
  /// "library/"; without tag and digest the tag is latest. Throws Error (Usage).
  static ImageReference parse(std::string_view text);
  std::string str() const;
  /// What stands in a request: the digest where there is one.
  std::string target() const { return digest ? digest->str() : tag; }
};

/// Whether distribution-spec 1.1 has such repositories, of at most 255 bytes.
bool valid_repository(std::string_view name);
/// "host" or "host:port"; IPv6 in brackets.
bool valid_authority(std::string_view text);

}  // namespace dsec::registry
