#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/json.h"
#include "core/model/layer_manifest.h"

namespace dsec::layers {

/// "os/architecture[/variant]" of image-spec 1.1.
struct Platform {
  std::string os, architecture, variant;

  static Platform parse(std::string_view text);
  std::string str() const;
  bool empty() const { return os.empty() && architecture.empty(); }
  /// How far an image for this platform is from what was asked for, 0 when it is that; empty when it would not run
  /// there. Processors run what was made for older variants of theirs, so of those the newest is nearest. Without a
  /// variant amd64 means v1, arm64 v8 and arm v7; who asks for none gets a newer one only where there is nothing else.
  std::optional<int> distance(const Platform& wanted) const;
};

/// What a document says about a blob it names.
struct Descriptor {
  Digest digest;
  std::uint64_t size;
  std::string media_type, artifact_type;
  Platform platform;  ///< empty when the descriptor has none
  std::map<std::string, std::string> annotations;
  std::optional<std::string> data;  ///< the blob itself, where the descriptor carries it along

  /// Throws Error (layer-damaged) naming `origin`.
  static Descriptor parse(const Json& json, const std::string& origin);
  /// Build attestations stand in an index like images, for the platform unknown/unknown.
  bool is_attestation() const;
};

/// What an image config says that matters here.
struct ImageDocument {
  Platform platform;
  ImageConfig config;
  std::vector<Digest> diff_ids;
  Digest digest;  ///< of its bytes: the image's identity, however the layers are packed

  static ImageDocument parse(std::string_view bytes, const std::string& origin);
};

/// parse_json whose Error is that of a refused input.
Json parse_document(std::string_view bytes, const std::string& origin);

}  // namespace dsec::layers
