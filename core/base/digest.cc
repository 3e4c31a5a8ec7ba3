#include "core/base/digest.h"

// The functions of sha256 itself, which OpenSSL 3 calls deprecated: what stands above them reads configuration files
// and looks for providers first, which takes longer than most commands do.
#define OPENSSL_API_COMPAT 0x10100000L
#include <fcntl.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec {

struct Sha256::State {
  SHA256_CTX context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) { SHA256_Init(&state_->context); }
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(const void* data, std::size_t size) { SHA256_Update(&state_->context, data, size); }

Digest Sha256::finish() {
  static constexpr char kHex[] = "0123456789abcdef";
  unsigned char raw[SHA256_DIGEST_LENGTH];
  SHA256_Final(raw, &state_->context);
  std::string hex;
  for (const unsigned char byte : raw) hex += {kHex[byte >> 4], kHex[byte & 15]};
  return Digest(std::move(hex));
}

bool Digest::valid_hex(std::string_view hex) {
  return hex.size() == 64 &&
         std::all_of(hex.begin(), hex.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Digest Digest::parse(std::string_view text) {
  std::string_view hex = text;
  if (hex.starts_with("sha256:")) hex.remove_prefix(7);
  if (!valid_hex(hex)) throw usage_error(quote(text) + " is no sha256 digest");
  return Digest(std::string(hex));
}

Digest Digest::of(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Digest digest_of_fd(int fd) {
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  for (off_t offset = 0;;) {
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read file for its digest");
    if (got == 0) return hash.finish();
    hash.update(buffer.data(), static_cast<std::size_t>(got));
    offset += got;
  }
}

Digest digest_of_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw system_error("open " + quote(path));
  return attempt("cannot read " + quote(path), [&] { return digest_of_fd(fd.get()); });
}

}  // namespace dsec
