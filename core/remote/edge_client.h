#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/json.h"
#include "core/base/unique_fd.h"
#include "core/engine/http_exchange.h"
#include "core/remote/frame.h"
#include "core/remote/remote_engine.h"
#include "core/remote/routes.h"

namespace dsec::remote {

/// Frames of an edge, over a connection that is theirs alone. One thread may take while others send.
class FrameStream {
 public:
  explicit FrameStream(UniqueFd socket) : socket_(std::move(socket)) {}

  /// The next one that says something; empty when `timeout` has passed. Throws Error when the edge says that something
  /// failed, is gone, or was silent for so long that it must be: then nothing can be sent any more either.
  std::optional<Frame> next(std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  void send(FrameKind kind, std::string_view payload);
  int descriptor() const noexcept { return socket_.get(); }

 private:
  std::optional<Frame> take(std::optional<std::chrono::milliseconds> timeout);

  UniqueFd socket_;
  FrameReader frames_;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
  std::mutex sending_;
};

/// For calls that have none.
const Json& no_body();

/// Calls of an edge, each over a connection of its own.
class EdgeClient {
 public:
  explicit EdgeClient(EdgePlace place) : place_(std::move(place)) {}

  /// One question and its answer; `status` becomes that of the answer. Throws what the edge answers as an error.
  Json ask(Call call, const Parameters& parameters, const Json& body = no_body(), const OperationContext& context = {},
           int* status = nullptr) const;

  /// A stream of frames.
  std::unique_ptr<FrameStream> open(Call call, const Parameters& parameters, const Json& body = no_body(),
                                    const OperationContext& context = {}) const;
  /// All of one, up to its end.
  void read(Call call, const Parameters& parameters, const Json& body, const OperationContext& context,
            const std::function<void(const Frame&)>& take) const;

  /// All of `source` up to its end as the body.
  void upload(Call call, const Parameters& parameters, int source, const OperationContext& context) const;

  /// The connection, which speaks `protocol` from now on.
  UniqueFd upgrade(Call call, const Parameters& parameters, const Json& body, const OperationContext& context,
                   const std::string& protocol) const;

 private:
  engine::HttpRequest request_of(Call call, const Parameters& parameters, const Json& body,
                                 const OperationContext& context) const;
  UniqueFd connect() const;
  /// Errors of the connection gain whose it is.
  template <typename Work>
  auto talk(Work&& work) const;

  const EdgePlace place_;
};

}  // namespace dsec::remote
