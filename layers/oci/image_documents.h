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
  /// Whether an image for this platform is what was asked for: no wish for a variant accepts each, and "v8" is what
  /// arm64 means without one.
  bool suits(const Platform& wanted) const;
};

/// What a document says about a blob it names.
struct Descriptor {
  Digest digest;
  std::uint64_t size;
  std::string media_type, artifact_type;
  Platform platform;  ///< empty when the descriptor has none
  std::map<std::string, std::string> annotations;

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
