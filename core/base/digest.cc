#include "core/base/digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (!state_->context || EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1)
    throw Error(ErrorKind::Internal, "OpenSSL offers no sha256");
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(const void* data, std::size_t size) { EVP_DigestUpdate(state_->context, data, size); }

Digest Sha256::finish() {
  static constexpr char kHex[] = "0123456789abcdef";
  unsigned char raw[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(state_->context, raw, &size);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += {kHex[raw[i] >> 4], kHex[raw[i] & 15]};
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
