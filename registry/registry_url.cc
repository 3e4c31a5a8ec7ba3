#include "registry/registry_url.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/http/url.h"
#include "registry/oci/reference.h"

namespace dsec::registry {

const char* const kRegistryForms =
    "file:///PATH, 3fs:///MOUNT/PATH, oci://HOST/REPOSITORY, https://HOST/PATH or s3://BUCKET/PREFIX";
const char* const kPublishForms = "file:///PATH, 3fs:///MOUNT/PATH, oci://HOST/REPOSITORY or s3://BUCKET/PREFIX";

namespace {

constexpr std::string_view kFile = "file://", kThreeFs = "3fs://", kOci = "oci://", kS3 = "s3://";

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

RegistryAddress parse_http(std::string_view url) {
  http::Url parsed = http::Url::parse(url);
  if (url.find_first_of("?#") != std::string_view::npos)
    throw usage_error(quote(url) + " has more than a path").hint("https://HOST/PATH, of the registry's directory");
  if (url.find(":///") != std::string_view::npos) throw usage_error(quote(url) + " is no URL: it names no host");
  while (parsed.target.ends_with('/')) parsed.target.pop_back();
  RegistryAddress address;
  address.kind = RegistryAddress::Kind::Http;
  address.base = parsed.str();
  return address;
}

// Letters, digits, '.', '_' and '-' stand for themselves wherever a key is written.
bool valid_prefix(std::string_view prefix) {
  if (prefix.empty()) return true;
  for (std::size_t begin = 0; begin <= prefix.size();) {
    const std::size_t end = std::min(prefix.find('/', begin), prefix.size());
    const std::string_view part = prefix.substr(begin, end - begin);
    const bool safe = std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
             c == '-';
    });
    if (part.empty() || part == "." || part == ".." || !safe) return false;
    begin = end + 1;
  }
  return prefix.size() <= 512;
}

bool valid_bucket(std::string_view bucket) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return bucket.size() >= 3 && bucket.size() <= 63 && plain(bucket.front()) && plain(bucket.back()) &&
         bucket.find("..") == std::string_view::npos &&
         std::all_of(bucket.begin(), bucket.end(), [&](char c) { return plain(c) || c == '.' || c == '-'; });
}

RegistryAddress parse_s3(std::string_view url) {
  RegistryAddress address;
  address.kind = RegistryAddress::Kind::S3;
  std::string_view rest = url.substr(kS3.size());
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t slash = rest.find('/');
  address.bucket = rest.substr(0, slash);
  if (slash != std::string_view::npos) address.prefix = rest.substr(slash + 1);
  if (!valid_bucket(address.bucket) || !valid_prefix(address.prefix))
    throw usage_error(quote(url) + " names no place in a bucket")
        .hint("s3://BUCKET/PREFIX, whose parts are letters, digits, '.', '_' and '-'; the bucket's in lower case");
  return address;
}

}  // namespace

const char* to_string(RegistryAddress::Kind kind) {
  switch (kind) {
    case RegistryAddress::Kind::Directory:
      return "directory";
    case RegistryAddress::Kind::ThreeFs:
      return "3fs";
    case RegistryAddress::Kind::Oci:
      return "oci";
    case RegistryAddress::Kind::Http:
      return "https";
    case RegistryAddress::Kind::S3:
      return "s3";
  }
  return "";
}

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
  } else if (url.starts_with("https://") || url.starts_with("http://")) {
    return parse_http(url);
  } else if (url.starts_with(kS3)) {
    return parse_s3(url);
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
    address.s3 = {entry.endpoint, entry.region, entry.path_style};
    return address;
  });
}

std::string RegistryAddress::url() const {
  static constexpr char kHex[] = "0123456789ABCDEF";
  if (kind == Kind::Oci) return std::string(kOci) + host + "/" + repository;
  if (kind == Kind::Http) return base;
  if (kind == Kind::S3) return std::string(kS3) + bucket + (prefix.empty() ? "" : "/" + prefix);
  std::string text(kind == Kind::ThreeFs ? kThreeFs : kFile);
  for (const char c : root.native()) {
    const auto byte = static_cast<unsigned char>(c);
    text += is_plain(c) ? std::string(1, c) : std::string{'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return text;
}

std::string RegistryAddress::shown() const { return name.empty() ? url() : name + " (" + url() + ")"; }

}  // namespace dsec::registry
