#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/http/url.h"

namespace dsec::http {

/// Name and value; names are compared without regard to case.
using Headers = std::vector<std::pair<std::string, std::string>>;
/// The first of that name; null when there is none.
const std::string* find_header(const Headers& headers, std::string_view name);

/// What a request carries; it is read again when the request has to be repeated.
struct Body {
  std::string text;
  int fd = -1;                                      ///< of an open file, instead of the text; stays the caller's
  std::uint64_t offset = 0, length = 0;             ///< of the part of the file, in bytes
  std::function<void(std::uint64_t sent)> advance;  ///< bytes of this body that are on their way

  std::uint64_t size() const { return fd >= 0 ? length : text.size(); }
};

/// What requests are signed with (AWS signature version 4, which libcurl makes): the path has to be escaped as the
/// server escapes it, and the query sorted. A header x-amz-content-sha256 stands for the body.
struct AwsSignature {
  std::string region, service;
  std::string key_id, secret;
  std::string session_token;  ///< may be empty
};

struct Request {
  std::string method = "GET";
  Url url;
  Headers headers;
  /// Value of the Authorization header: for the origin of `url`, and nobody that a redirect leads to.
  std::string authorization;
  /// Instead of it, and as far; null: unsigned.
  std::shared_ptr<const AwsSignature> signature;
  Body body;
  /// Whether it may be sent again when nobody knows what became of it. GET and HEAD always may.
  bool repeatable = true;
};

struct Answer {
  int status = 0;
  std::string reason;  ///< what stands behind the status: "Not Found"; empty with HTTP/2
  Headers headers;
  std::string body;  ///< empty when it went into a Download
  Url url;           ///< that answered: another than was asked for after a redirect

  bool ok() const noexcept { return status >= 200 && status < 300; }
  const std::string* header(std::string_view name) const { return find_header(headers, name); }
};

/// Where the body of a successful answer goes, piece by piece, and how far that is. Given to Client::send() again it
/// goes on where it was.
class Download {
 public:
  using Sink = std::function<void(std::string_view)>;
  /// Of exactly `size` bytes.
  Download(std::uint64_t size, Sink sink) : whole_(size), size_(size), sink_(std::move(sink)) {}
  /// Of `size` bytes at `first`, of a resource that has exactly `whole`, and not 0 bytes. Only of a server that knows
  /// ranges.
  Download(std::uint64_t first, std::uint64_t size, std::uint64_t whole, Sink sink)
      : first_(first), whole_(whole), size_(size), sink_(std::move(sink)) {}

  std::uint64_t first() const noexcept { return first_; }
  std::uint64_t whole() const noexcept { return whole_; }
  bool is_part() const noexcept { return size_ != whole_; }
  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t done() const noexcept { return done_; }
  bool complete() const noexcept { return done_ == size_; }
  /// Called by the client.
  void take(std::string_view piece) {
    sink_(piece);
    done_ += piece.size();
  }
  /// Strong, of the first answer; empty when it had none. Whoever sets it before gets that version or an Error.
  std::string etag;

 private:
  std::uint64_t first_ = 0, whole_, size_, done_ = 0;
  Sink sink_;
};

}  // namespace dsec::http
