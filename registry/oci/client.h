#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/http/client.h"
#include "registry/oci/auth.h"

namespace dsec::registry {

/// A manifest or index, whose bytes have the digest.
struct ManifestDocument {
  Digest digest;
  std::string bytes, media_type;
};

/// What is pushed as a blob: text, or a file of this host.
struct BlobContent {
  std::string text;
  int fd = -1;
  std::uint64_t size = 0;
};

/// One registry through distribution-spec 1.1. Any number of threads; what it uses must outlive it. Everything throws
/// Error; "not there" is an empty answer where it may be expected.
class OciClient {
 public:
  enum class Scheme { Https, Http };
  OciClient(http::Client& client, Authenticator& authenticator, std::string host, Scheme scheme);

  const std::string& host() const noexcept { return host_; }
  /// Whether it answers as a registry.
  void ping();

  /// Verified against its digest where the reference is one or the registry tells it.
  std::optional<ManifestDocument> manifest(const std::string& repository, const std::string& reference);
  std::optional<Digest> manifest_digest(const std::string& repository, const std::string& reference);
  std::optional<std::uint64_t> blob_size(const std::string& repository, const Digest& digest);
  /// A small blob as a whole, verified; empty when it is not there.
  std::optional<std::string> blob(const std::string& repository, const Digest& digest);
  /// Streams it; who reads verifies the digest. False when it is not there.
  bool read_blob(const std::string& repository, const Digest& digest, http::Download& download);

  /// Takes a blob over from another repository of the registry. False when the registry does not, for whatever reason.
  bool mount_blob(const std::string& repository, const Digest& digest, const std::string& from);
  /// In one piece when it is small, else in chunks, each of which is repeated by itself. `advance` is told the bytes.
  void push_blob(const std::string& repository, const Digest& digest, const BlobContent& content,
                 const std::function<void(std::uint64_t)>& advance);
  /// Returns the subject of the manifest when the registry says that it keeps a list of what refers to it.
  std::optional<Digest> push_manifest(const std::string& repository, const std::string& reference,
                                      const std::string& media_type, const std::string& bytes);
  /// No error when it is gone. Throws Error (Usage) when the registry lets nobody delete.
  void delete_manifest(const std::string& repository, const Digest& digest);

  /// All tags, in the registry's order; none when there is no such repository.
  std::vector<std::string> tags(const std::string& repository);
  /// All repositories below a path; empty when the registry keeps no catalogue for us.
  std::optional<std::vector<std::string>> repositories(const std::string& below);

 private:
  http::Url url(const std::string& target) const;
  http::Answer call(http::Request request, const AccessRequest& access, http::Download* download = nullptr);
  AccessRequest access(const std::string& repository, std::string_view actions) const;
  Error error_of(const http::Request& request, const http::Answer& answer) const;
  http::Url begin_upload(const std::string& repository, const AccessRequest& access, std::uint64_t& smallest_chunk);
  std::optional<http::Answer> upload(const std::string& repository, const Digest& digest, const BlobContent& content,
                                     const std::function<void(std::uint64_t)>& advance);
  void abandon(const http::Url& upload, const AccessRequest& access);
  http::Url push_chunks(http::Url place, const BlobContent& content, std::uint64_t chunk, const AccessRequest& access,
                        const std::function<void(std::uint64_t)>& advance);
  std::vector<std::string> pages(const std::string& target, const char* member, const AccessRequest& access,
                                 std::optional<http::Answer>& refusal);

  http::Client& client_;
  Authenticator& authenticator_;
  const std::string host_;
  const Scheme scheme_;
};

/// What registries are asked for when a manifest is: everything that may be an image, an index or an artifact.
extern const char* const kManifestTypes;
extern const char* const kImageManifestType;

}  // namespace dsec::registry
