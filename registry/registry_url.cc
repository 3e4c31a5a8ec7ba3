#include "registry/registry_url.h"

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "registry/oci/reference.h"

namespace dsec::registry {

const char* const kRegistryForms = "file:///PATH, 3fs:///MOUNT/PATH or oci://HOST/REPOSITORY";

namespace {

constexpr std::string_view kFile = "file://", kThreeFs = "3fs://", kOci = "oci://";
constexpr std::array<std::string_view, 3> kLater = {"https://", "http://", "s3://"};

// Bytes that stand for themselves in the path of a URL.
bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("/-._~+,=@:!$&'()*;").find(c) != std::string_view::npos;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string decode(std::string_view text, std::string_view url) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char byte = text[i];
    if (byte == '%') {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
      if (low < 0) throw usage_error(quote(url) + " has an invalid % escape").hint("write %25 for a percent sign");
      byte = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f)
      throw usage_error(quote(url) + " holds a control character");
    out += byte;
  }
  return out;
}

RegistryAddress parse_oci(std::string_view url) {
  RegistryAddress address;
  address.kind = RegistryAddress::Kind::Oci;
  std::string_view rest = url.substr(kOci.size());
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t slash = rest.find('/');
  address.host = rest.substr(0, slash);
  if (slash != std::string_view::npos) address.repository = rest.substr(slash + 1);
  if (!valid_authority(address.host) || !valid_repository(address.repository))
    throw usage_error(quote(url) + " names no repository")
        .hint(
            "oci://HOST/REPOSITORY, whose parts are lowercase letters, digits, '.', '_' and '-'; tags belong to "
            "layers");
  return address;
}

}  // namespace

RegistryAddress RegistryAddress::parse(std::string_view url) {
  RegistryAddress address;
  std::string_view rest;
  if (url.starts_with(kFile)) {
    rest = url.substr(kFile.size());
  } else if (url.starts_with(kThreeFs)) {
    address.kind = Kind::ThreeFs;
    rest = url.substr(kThreeFs.size());
  } else if (url.starts_with(kOci)) {
    return parse_oci(url);
  } else if (std::any_of(kLater.begin(), kLater.end(),
                         [&](std::string_view scheme) { return url.starts_with(scheme); })) {
    throw usage_error("registries of the kind " + quote(url.substr(0, url.find(':') + 1)) + " are not supported yet")
        .hint(std::string("use ") + kRegistryForms);
  } else {
    Error error = usage_error(quote(url) + " is no URL of a registry");
    if (url.starts_with("/")) throw std::move(error).hint("file://" + std::string(url));
    throw std::move(error).hint(std::string("write ") + kRegistryForms +
                                ", or the name of a registry of dsec registry ls");
  }
  if (!rest.starts_with('/'))
    throw usage_error(quote(url) + " has no absolute path")
        .hint("write three slashes: file:///PATH, 3fs:///MOUNT/PATH");
  address.root = std::filesystem::path(decode(rest, url)).lexically_normal();
  if (!address.root.has_filename() && address.root.has_parent_path() && address.root != "/")
    address.root = address.root.parent_path();
  return address;
}

RegistryAddress RegistryAddress::of(const RegistryEntry& entry) {
  return attempt("registry " + quote(entry.name) + " has an invalid URL", [&] {
    RegistryAddress address = parse(entry.url);
    address.name = entry.name;
    address.in_place = entry.in_place;
    address.allow_any_fs = entry.allow_any_fs;
    return address;
  });
}

std::string RegistryAddress::url() const {
  static constexpr char kHex[] = "0123456789ABCDEF";
  if (kind == Kind::Oci) return std::string(kOci) + host + "/" + repository;
  std::string text(kind == Kind::ThreeFs ? kThreeFs : kFile);
  for (const char c : root.native()) {
    const auto byte = static_cast<unsigned char>(c);
    text += is_plain(c) ? std::string(1, c) : std::string{'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return text;
}

std::string RegistryAddress::shown() const { return name.empty() ? url() : name + " (" + url() + ")"; }

}  // namespace dsec::registry
