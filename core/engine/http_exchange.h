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

/// One request and its answer over a stream that is connected to an HTTP/1.1 server, which is not of use afterwards.
/// Content-Length and chunks are resolved, a Content-Encoding is not. Throws Error when the server breaks the protocol
/// or ends early. Written here since a library for HTTP would take longer to load than the whole exchange does.
void http_exchange(int stream, const HttpRequest& request, const HttpSink& sink);

}  // namespace dsec::engine
