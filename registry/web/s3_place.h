#pragma once

#include <functional>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "registry/registry_url.h"
#include "registry/web/object_place.h"
#include "registry/web/s3_environment.h"

namespace dsec::registry {

/// What an object is made of: text, or an open file of this host from its start.
struct ObjectContent {
  std::string text;
  int fd = -1;
  std::uint64_t size = 0;
  std::optional<Digest> digest;  ///< of a file: what its bytes must have
  /// What to say when they have another.
  std::function<Error(const Digest& found)> damaged = {};
};

/// Above this an object is sent in parts of at least this size, each of which is repeated by itself.
inline constexpr std::uint64_t kObjectPart = 64ull << 20;

/// A registry below a prefix of a bucket. The environment is read when it is made, and keys again when they end.
class S3Place : public ObjectPlace {
 public:
  S3Place(const Config& config, http::ClientOptions options, const RegistryAddress& address,
          std::uint64_t part_bytes = kObjectPart);

  /// Throws Error (Usage) when there is no registry, or no bucket.
  void check_registry() const;
  /// Makes one where nothing lies below the prefix; any number of processes may do so at once.
  void make_registry() const;

  /// In the order of their names. Throws Error.
  std::vector<std::string> names(const std::string& prefix) const override;

  enum class Existing { Keep, Replace };
  /// Writes an object, whose content the server compares with its digest; false when it exists and is kept, as far as
  /// the server lets us see it. `advance` is told the bytes of the content that are on their way. Throws Error, also
  /// when a file's bytes have another digest; then nothing has its name.
  bool put(const std::string& name, const ObjectContent& content, Existing existing,
           const std::function<void(std::uint64_t)>& advance) const;
  /// No error when there is none.
  void remove(const std::string& name) const;

 protected:
  http::Url url(const std::string& name) const override;
  http::Answer send(http::Request request, http::Download* download) const override;
  Error refusal(const http::Request& request, const http::Answer& answer) const override;

 private:
  friend class ObjectUpload;
  std::string key(const std::string& name) const;
  std::vector<std::string> list(const std::string& key_prefix, std::size_t limit) const;
  bool put_whole(const std::string& name, const ObjectContent& content, Existing existing,
                 const std::function<void(std::uint64_t)>& advance) const;
  /// Sends it so that nothing is overwritten, where the server knows how.
  http::Answer send_once(http::Request request) const;
  S3Environment environment() const;

  const RegistryAddress address_;
  const std::uint64_t part_bytes_;
  mutable std::mutex mutex_;
  mutable S3Environment environment_;
  const S3Target target_;
  mutable WebAccess access_;
  mutable std::atomic<bool> conditional_ = true;
};

}  // namespace dsec::registry
