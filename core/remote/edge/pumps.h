#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/unique_fd.h"
#include "core/engine/engine.h"
#include "core/remote/edge/http_server.h"
#include "core/remote/edge/readiness.h"
#include "core/remote/edge/worker_pool.h"

namespace dsec::remote {

/// What moves bytes between clients and sandboxes. No pump holds more than a few pieces, and one whose client does not
/// read stops reading itself. Each keeps itself alive until its exchange ends; `held` goes with it. To be called from
/// any thread; the rest happens in the exchange's turn.
using Held = std::shared_ptr<void>;

/// A command: its events out, and input, the size of the terminal in where the connection was upgraded. The client's
/// end detaches it. No thread waits for it.
void pump_command(std::shared_ptr<Exchange> exchange, std::unique_ptr<engine::ExecStream> stream, std::string sandbox,
                  Readiness& readiness, Held held);

/// A connection to a port of a sandbox, both ways.
void pump_bytes(std::shared_ptr<Exchange> exchange, UniqueFd socket, Readiness& readiness, Held held);

enum class Produces { Bytes, Frames };
/// What `work` writes to its descriptor, in a thread of `threads`, until it returns: bytes, which become frames of
/// data, or whole frames already. An Error of it is told: as an answer while nothing was sent, else as the last frame.
/// Its writes fail with EPIPE once the client is gone. Answers 503 when there are too many threads, or of `sandbox`.
void pump_out(std::shared_ptr<Exchange> exchange, Produces produces, std::function<void(int to)> work,
              Readiness& readiness, ThreadLimit& threads, const std::string& sandbox);

/// The body of the request, to a descriptor that `work` reads likewise; when it returns the answer is {}. A client that
/// is cut off within the body is no end of it: its reads fail then.
void pump_in(std::shared_ptr<Exchange> exchange, std::function<void(int from)> work, Readiness& readiness,
             ThreadLimit& threads, const std::string& sandbox);

/// What a failed call is answered with.
Answer answer_of(const Error& error);
/// 503: the same may succeed a little later.
Answer busy(const std::string& why);

}  // namespace dsec::remote
