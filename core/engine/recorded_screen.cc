#include "core/engine/recorded_screen.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/engine/kept_stream.h"

namespace dsec::engine {

std::string record_screenshot(const RecordingPlace& place, std::uint64_t limit, const OperationContext& context,
                              const std::function<std::string()>& take) {
  std::string picture;
  const auto work = [&](std::uint64_t seq, Operation::Done& done) {
    picture = take();
    KeptStream kept(seq ? place.trajectory : std::filesystem::path(), seq, limit);
    kept.add(picture);
    kept.finish(done, !context.op_id.empty());
    Json result = {{"bytes", picture.size()}, {"sha256", Digest::of(picture).hex()}};
    if (seq && kept.dropped()) result["stdout_dropped"] = kept.dropped();
    done.result = canonical_json(result);
  };
  const Operation operation = record_operation(place, {"screenshot", "{}", context}, work);
  if (!picture.empty()) return picture;
  const Json result = parse_json(operation.done->result, "result");
  const Trajectory trajectory{place.trajectory, {}, {}, {}};
  picture = trajectory.output(operation, 0);
  if (json_u64(result, "bytes") != picture.size())
    throw failure("of a picture of " + format_size(json_u64(result, "bytes")) + " only " + format_size(picture.size()) +
                  " were kept")
        .context("cannot give the picture of operation " + quote(context.op_id) + " again")
        .hint("take it under another op-id")
        .hint("a larger --output-limit keeps more");
  return picture;
}

}  // namespace dsec::engine
