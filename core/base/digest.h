#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace dsec {

/// A sha256 digest; one that exists is well formed.
class Digest {
 public:
  /// Accepts "sha256:<64 lowercase hex digits>" or the hex digits alone; throws Error (Usage) otherwise.
  static Digest parse(std::string_view text);
  static bool valid_hex(std::string_view hex);
  /// Of bytes in memory.
  static Digest of(std::string_view bytes);

  const std::string& hex() const noexcept { return hex_; }
  /// "sha256:<hex>".
  std::string str() const { return "sha256:" + hex_; }
  /// The first 12 digits, for people.
  std::string brief() const { return hex_.substr(0, 12); }
  auto operator<=>(const Digest&) const = default;

 private:
  friend class Sha256;
  explicit Digest(std::string hex) : hex_(std::move(hex)) {}
  std::string hex_;
};

/// A running sha256.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();
  void update(const void* data, std::size_t size);
  void update(std::string_view bytes) { update(bytes.data(), bytes.size()); }
  /// The digest of all that was given; the object may not be used afterwards.
  Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of a whole file; throws Error naming the file.
Digest digest_of_file(const std::string& path);
/// Of an open file from its offset 0 to its end; the file offset is not moved.
Digest digest_of_fd(int fd);

}  // namespace dsec

template <>
struct std::hash<dsec::Digest> {
  std::size_t operator()(const dsec::Digest& digest) const noexcept { return std::hash<std::string>()(digest.hex()); }
};
