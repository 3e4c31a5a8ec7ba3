#include "registry/oci/reference.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/model/layer_ref.h"

namespace dsec::registry {
namespace {

constexpr std::string_view kHub = "docker.io";
constexpr std::string_view kWord = "abcdefghijklmnopqrstuvwxyz0123456789";

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Letters and digits with '.', '_', '__' or dashes between them.
bool valid_component(std::string_view text) {
  if (text.empty() || !is_word(text.front()) || !is_word(text.back())) return false;
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find_first_not_of(kWord, at);
    if (end == std::string_view::npos) return true;
    at = text.find_first_of(kWord, end);
    const std::string_view between = text.substr(end, at - end);
    const bool dashes = between.find_first_not_of('-') == std::string_view::npos;
    if (between != "." && between != "_" && between != "__" && !dashes) return false;
  }
}

bool is_host(std::string_view component) {
  return component.find('.') != std::string_view::npos || component.find(':') != std::string_view::npos ||
         component == "localhost";
}

Error refused(std::string_view text, const std::string& why) {
  return usage_error(quote(text) + " names no image: " + why).hint("docker://HOST/REPOSITORY[:TAG|@DIGEST]");
}

}  // namespace

bool valid_repository(std::string_view name) {
  if (name.empty() || name.size() > 255) return false;
  for (;;) {
    const std::size_t slash = name.find('/');
    if (!valid_component(name.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

bool valid_authority(std::string_view text) {
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return false;
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (host.empty() || host.find_first_not_of("0123456789abcdefABCDEF:.") != std::string_view::npos) return false;
  } else {
    const std::size_t colon = text.find(':');
    host = text.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
    const auto plain = [](char c) { return is_word(c) || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_'; };
    if (host.empty() || !std::all_of(host.begin(), host.end(), plain) || host.front() == '.' || host.front() == '-')
      return false;
  }
  if (port.empty()) return true;
  port.remove_prefix(1);
  return !port.empty() && port.size() <= 5 && std::all_of(port.begin(), port.end(), is_digit) &&
         std::stoul(std::string(port)) <= 65535 && std::stoul(std::string(port)) > 0;
}

ImageReference ImageReference::parse(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("//")) rest.remove_prefix(2);
  ImageReference reference;
  reference.host = kHub;
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos && is_host(rest.substr(0, slash))) {
    reference.host = rest.substr(0, slash);
    rest.remove_prefix(slash + 1);
    if (!valid_authority(reference.host)) throw refused(text, quote(reference.host) + " is no host");
  }
  if (reference.host == "index.docker.io" || reference.host == "registry-1.docker.io") reference.host = kHub;
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    const std::string_view digest = rest.substr(at + 1);
    if (!digest.starts_with("sha256:") || !Digest::valid_hex(digest.substr(7)))
      throw refused(text, quote(digest) + " is no sha256 digest");
    reference.digest = Digest::parse(digest);
    rest = rest.substr(0, at);
  }
  if (const std::size_t colon = rest.find(':'); colon != std::string_view::npos) {
    reference.tag = rest.substr(colon + 1);
    if (!valid_tag(reference.tag)) throw refused(text, quote(reference.tag) + " is no tag");
    rest = rest.substr(0, colon);
  }
  reference.repository = rest;
  if (reference.host == kHub && rest.find('/') == std::string_view::npos)
    reference.repository = "library/" + std::string(rest);
  if (rest.empty() || !valid_repository(reference.repository))
    throw refused(text, quote(rest) + " is no repository, which has lowercase letters, digits and '/', '.', '_', '-'");
  if (reference.tag.empty() && !reference.digest) reference.tag = "latest";
  return reference;
}

std::string ImageReference::str() const {
  return host + "/" + repository + (tag.empty() ? "" : ":" + tag) + (digest ? "@" + digest->str() : "");
}

}  // namespace dsec::registry
