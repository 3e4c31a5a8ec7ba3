#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/model/operation_context.h"

namespace dsec::engine {

struct HttpRequest {
  std::string method = "GET";
  std::string path = "/";                            ///< with its query
  std::vector<std::string> headers;                  ///< "Name: value"; over those that are sent anyway
  std::string body;                                  ///< empty: none
  std::string host;                                  ///< for the Host header: "localhost:8080"
  std::optional<std::chrono::milliseconds> timeout;  ///< without a byte of the answer; none: no limit
  OperationContext operation;
};

struct HttpResponse {
  int status = 0;
  std::string reason;
  std::vector<std::pair<std::string, std::string>> headers;  ///< as they came, in order
  std::string header(std::string_view name) const;           ///< the first of that name in any case, or empty
};

/// Gets an answer: `head` once, then `body` its content piece by piece.
struct HttpSink {
  std::function<void(const HttpResponse&)> head;
  std::function<void(std::string_view)> body;
};

/// The request line, the headers and the body of a request as they are sent. Throws Error (Usage) for what would be
/// another request on the wire.
std::string http_text(const HttpRequest& request);

/// Reads one answer of an HTTP/1.1 server from a connected stream, of which it takes more than it gives: the stream is
/// not of use afterwards. Content-Length and chunks are resolved, a Content-Encoding is not. Throws Error when the
/// server breaks the protocol or ends early.
class HttpAnswer {
 public:
  /// `begun`: what was read of the stream already.
  explicit HttpAnswer(int stream, std::string begun = {}) : stream_(stream), text_(std::move(begun)) {}

  /// First, and once. `method` is that of the request, which decides whether there is a body.
  const HttpResponse& head(std::string_view method);
  /// The next piece of the body; empty at its end.
  std::string some();

 private:
  enum class Form { Empty, Length, Chunks, UntilEnd };
  std::string line();
  std::string raw(std::uint64_t most);
  bool receive();
  bool begin_chunk();

  int stream_;
  std::string text_;
  std::size_t used_ = 0;
  HttpResponse head_;
  Form form_ = Form::Empty;
  std::uint64_t left_ = 0;  ///< bytes of the body, or of the chunk
  bool within_chunk_ = false;
};

/// One request and its answer over a stream that is connected to an HTTP/1.1 server, which is not of use afterwards.
/// Throws Error as HttpAnswer does. Written here since a library for HTTP would take longer to load than the whole
/// exchange does.
void http_exchange(int stream, const HttpRequest& request, const HttpSink& sink);

}  // namespace dsec::engine
