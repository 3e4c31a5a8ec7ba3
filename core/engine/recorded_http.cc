#include "core/engine/recorded_http.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/engine/http_json.h"
#include "core/engine/kept_stream.h"

namespace dsec::engine {

void record_http(const RecordingPlace& place, std::uint16_t port, const HttpRequest& request, std::uint64_t limit,
                 const HttpSink& sink, const std::function<UniqueFd()>& connect) {
  bool asked_now = false;
  const bool named = !request.operation.op_id.empty();
  const auto work = [&](std::uint64_t seq, Operation::Done& done) {
    asked_now = true;
    // Where nothing is recorded nothing is kept.
    const std::filesystem::path kept = seq ? place.trajectory : std::filesystem::path();
    keep_input(kept, seq, request.body, limit, done, named);
    KeptStream answer(kept, seq, limit);
    int status = 0;
    const UniqueFd stream = connect();
    const auto on_head = [&](const HttpResponse& response) {
      status = response.status;
      sink.head(response);
    };
    const auto on_body = [&](std::string_view part) {
      answer.add(part);
      sink.body(part);
    };
    try {
      http_exchange(stream.get(), request, {on_head, on_body});
    } catch (const Error&) {
      // What came before it broke off is told, too.
      answer.finish(done, named);
      throw;
    }
    answer.finish(done, named);
    Json result = {{"status", status}, {"bytes", answer.bytes()}};
    if (seq && answer.dropped()) result["stdout_dropped"] = answer.dropped();
    done.result = canonical_json(result);
  };
  const Operation operation =
      record_operation(place, {"http", canonical_json(http_json(request, port)), request.operation}, work);
  if (asked_now) return;
  const Json result = parse_json(operation.done->result, "result");
  const Trajectory trajectory{place.trajectory, {}, {}, {}};
  const std::string content = trajectory.output(operation, 0);
  if (json_u64(result, "bytes") != content.size())
    throw failure("of an answer of " + format_size(json_u64(result, "bytes")) + " only " + format_size(content.size()) +
                  " were kept")
        .context("cannot give the answer of operation " + quote(request.operation.op_id) + " again")
        .hint("ask under another op-id")
        .hint("a larger --output-limit keeps more");
  sink.head({.status = static_cast<int>(json_u64(result, "status")), .reason = "recorded", .headers = {}});
  sink.body(content);
}

}  // namespace dsec::engine
