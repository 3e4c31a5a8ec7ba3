#include "core/model/layer_ref.h"

#include <algorithm>
#include <array>

#include "core/base/error.h"

namespace dsec {
namespace {

constexpr std::array<std::string_view, 4> kKinds = {"base", "workspace", "toolkit", "snapshot"};
constexpr std::size_t kLongestName = 200;
constexpr std::size_t kShortestPrefix = 4;

bool is_name_character(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
bool all_hex(std::string_view text) { return std::all_of(text.begin(), text.end(), is_hex); }

// One component: alphanumeric runs joined by '.', '_', '__' or any number of '-'.
bool valid_component(std::string_view text) {
  if (text.empty() || !is_name_character(text.front()) || !is_name_character(text.back())) return false;
  for (std::size_t i = 0; i < text.size();) {
    if (is_name_character(text[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && text[end] == text[i]) ++end;
    const std::size_t run = end - i;
    const bool joined = text[i] == '-' || (text[i] == '_' && run <= 2) || (text[i] == '.' && run == 1);
    if (!joined || !is_name_character(text[end])) return false;
    i = end;
  }
  return true;
}

bool valid_repository(std::string_view name) {
  if (name.empty() || name.size() > kLongestName) return false;
  while (true) {
    const std::size_t slash = name.find('/');
    if (!valid_component(name.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

std::string parse_prefix(std::string_view text, std::string_view whole) {
  if (text.starts_with("sha256:")) text.remove_prefix(7);
  if (text.size() < kShortestPrefix || text.size() > 64 || !all_hex(text))
    throw usage_error(quote(whole) + " has no valid digest")
        .hint("give sha256: and 4 to 64 lowercase hex digits, as dsec layer ls prints them");
  return std::string(text);
}

}  // namespace

std::string_view to_string(LayerKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::optional<LayerKind> parse_layer_kind(std::string_view text) {
  const auto found = std::find(kKinds.begin(), kKinds.end(), text);
  if (found == kKinds.end()) return std::nullopt;
  return static_cast<LayerKind>(found - kKinds.begin());
}

std::string LayerName::str() const { return std::string(to_string(kind)) + "/" + name; }

LayerName LayerName::parse(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::optional<LayerKind> kind = parse_layer_kind(text.substr(0, slash));
  if (slash == std::string_view::npos || !kind)
    throw usage_error(quote(text) + " is no layer name")
        .hint("write KIND/NAME, where KIND is base, workspace, toolkit or snapshot");
  const std::string_view name = text.substr(slash + 1);
  if (!valid_repository(name))
    throw usage_error(quote(text) + " has an invalid name " + quote(name))
        .hint("use lowercase letters and digits, joined by '.', '_', '-' or '/', at most 200");
  return {*kind, std::string(name)};
}

bool valid_tag(std::string_view tag) {
  const auto word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !tag.empty() && tag.size() <= 128 && word(tag.front()) &&
         std::all_of(tag.begin(), tag.end(), [&](char c) { return word(c) || c == '.' || c == '-'; });
}

LayerRef LayerRef::parse(std::string_view text) {
  LayerRef ref;
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    ref.name = LayerName::parse(text.substr(0, at));
    ref.digest_prefix = parse_prefix(text.substr(at + 1), text);
    return ref;
  }
  if (text.starts_with("sha256:") ||
      (text.find('/') == std::string_view::npos && text.size() >= kShortestPrefix && all_hex(text))) {
    ref.digest_prefix = parse_prefix(text, text);
    return ref;
  }
  const std::size_t colon = text.find(':');
  ref.name = LayerName::parse(text.substr(0, colon));
  ref.tag = colon == std::string_view::npos ? "latest" : std::string(text.substr(colon + 1));
  if (!valid_tag(*ref.tag))
    throw usage_error(quote(text) + " has an invalid tag " + quote(*ref.tag))
        .hint("a tag is 1 to 128 letters, digits, '_', '.' or '-' and does not begin with '.' or '-'");
  return ref;
}

LayerRef LayerRef::of(const Digest& digest) {
  LayerRef ref;
  ref.digest_prefix = digest.hex();
  return ref;
}

std::string LayerRef::str() const {
  std::string text = name ? name->str() : "";
  if (digest_prefix) return text + (name ? "@" : "") + "sha256:" + *digest_prefix;
  return text + ":" + tag.value_or("latest");
}

}  // namespace dsec
