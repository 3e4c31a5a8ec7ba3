#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/digest.h"

namespace dsec {

enum class LayerKind { Base, Workspace, Toolkit, Snapshot };

/// "base", "workspace", "toolkit", "snapshot".
std::string_view to_string(LayerKind kind);
/// Empty when `text` names none.
std::optional<LayerKind> parse_layer_kind(std::string_view text);

/// "kind/name", where name is an OCI repository path: lowercase letters and digits, separated by '.', '_', '__' or '-',
/// components by '/' (distribution-spec 1.1); at most 200 bytes.
struct LayerName {
  LayerKind kind;
  std::string name;

  /// Throws Error (Usage) that says which part is wrong.
  static LayerName parse(std::string_view text);
  std::string str() const;
  auto operator<=>(const LayerName&) const = default;
};

/// A tag as the distribution-spec has it: [A-Za-z0-9_][A-Za-z0-9._-]{0,127}.
bool valid_tag(std::string_view tag);

/// What a person types to name a layer: "kind/name" (tag latest), "kind/name:tag", "kind/name@sha256:<hex>", or the
/// digest alone, whole or as a prefix of at least 4 digits ("sha256:3f2c", "3f2c9d1", "kind/name@sha256:3f2c").
struct LayerRef {
  std::optional<LayerName> name;
  std::optional<std::string> tag;            ///< set when no digest was given
  std::optional<std::string> digest_prefix;  ///< hex digits; 64 of them are a whole digest

  static LayerRef parse(std::string_view text);
  static LayerRef of(const Digest& digest);
  std::string str() const;
  bool operator==(const LayerRef&) const = default;
};

}  // namespace dsec
