#include "runners/container/open_operation.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_bytes.h"

namespace dsec::runners {
namespace {

class KeeperOperation final : public engine::OpenOperation {
 public:
  KeeperOperation(Channel channel, std::uint64_t seq, bool stops)
      : channel_(std::move(channel)), seq_(seq), stops_(stops) {}

  std::uint64_t seq() const override { return seq_; }

  void end(const Operation::Done& done) override {
    if (seq_ == 0) return;
    try {
      finish(done);
    } catch (const KeeperGone&) {
      // A stop ends its keeper, which has recorded that before; so may what is typed at a machine.
      if (!stops_) throw;
    }
  }

 private:
  void finish(const Operation::Done& done) {
    Operation operation;
    operation.done = done;
    // What the keeper does not write itself, as members that it appends to its own.
    Json members = parse_json(done_line(operation), "record");
    for (const char* own : {"seq", "record", "op_id", "time_us", "duration_us", "outcome"}) members.erase(own);
    std::string text = canonical_json(members);
    text = "," + text.substr(1, text.size() - 2);
    std::uint32_t flags = 0;
    if (done.outcome == Operation::Outcome::Failed) flags |= wire::kEndFailed;
    try {
      channel_.send(wire::Type::End, FrameText().u64(seq_).u32(flags).str(text).text());
    } catch (const KeeperGone&) {
      // Of what ends it it has said how it was recorded, unasked.
      if (!stops_) throw;
    }
    const std::optional<Frame> answer = channel_.receive();
    if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
    if (answer->type != wire::Type::Recorded) throw failure("the sandbox's keeper broke the protocol");
  }

  Channel channel_;
  const std::uint64_t seq_;
  const bool stops_;
};

}  // namespace

std::unique_ptr<engine::OpenOperation> begin_operation(Channel channel, const engine::OperationRequest& request) {
  FrameText text;
  text.str(request.context.op_id).str(request.kind).u32(static_cast<std::uint32_t>(request.context.origin));
  channel.send(wire::Type::Begin, text.str(request.request).text());
  const std::optional<Frame> answer = channel.receive();
  if (answer->type == wire::Type::Known) return nullptr;
  if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
  const std::uint64_t seq = answer->reader().u64();
  if (answer->type != wire::Type::Begun) throw failure("the sandbox's keeper broke the protocol");
  return std::make_unique<KeeperOperation>(std::move(channel), seq,
                                           request.kind == "stop" || request.kind == "screen-input");
}

}  // namespace dsec::runners
