#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/remote/edge/gate.h"
#include "core/remote/edge/pumps.h"
#include "core/remote/frame.h"

namespace dsec::remote {
namespace {
using engine::ExecEvent;
using engine::ExecStream;

constexpr std::size_t kPiece = 64 << 10;
constexpr std::uint32_t kLongestInput = 256 << 10;

class CommandPump : public std::enable_shared_from_this<CommandPump> {
 public:
  CommandPump(std::shared_ptr<Exchange> exchange, std::unique_ptr<ExecStream> stream, std::string sandbox,
              Readiness& readiness, Held held)
      : exchange_(std::move(exchange)),
        stream_(std::move(stream)),
        sandbox_(std::move(sandbox)),
        output_(std::in_place, readiness, stream_->descriptor(), Ready::ToRead),
        held_(std::move(held)) {
    if (stream_->descriptor() >= 0) input_.emplace(readiness, stream_->descriptor(), Ready::ToWrite);
  }
  Exchange& exchange() { return *exchange_; }

  void begin() {
    const auto self = shared_from_this();
    exchange_->on_gone([self] { self->drop(); });
    if (!stream_) return;
    exchange_->begin_stream({.protocol = kFramesProtocol,
                             .type = kFramesType,
                             .quiet = frame(FrameKind::KeepAlive),
                             .patient = true,
                             .body_is_done = true});
    exchange_->on_drain([self] {
      if (!self->stream_) return;
      const std::string id = self->stream_->exec_id();
      self->finish(frame(FrameKind::Failed, error_document(failure("the edge ends, and the command goes on")
                                                               .hint("dsec attach " + self->sandbox_ + " " + id))));
    });
    const Json first = {{"exec_id", stream_->exec_id()}};
    exchange_->send(frame(FrameKind::Record, first), [self] { self->forward(); });
    if (exchange_->upgraded()) hear();
  }

 private:
  // What has come of the command.
  void forward() {
    if (!stream_ || finished_) return;
    const auto self = shared_from_this();
    std::string text;
    try {
      while (text.size() < kPiece) {
        const std::optional<ExecEvent> event = stream_->next(std::chrono::milliseconds(0));
        if (!event) break;
        if (event->kind == ExecEvent::Kind::Exited) {
          append_frame(text, FrameKind::Exited, canonical_json(to_wire(event->result)));
          return finish(std::move(text));
        }
        append_frame(text, event->kind == ExecEvent::Kind::Stderr ? FrameKind::Stderr : FrameKind::Stdout, event->data);
      }
      if (text.empty()) return output_->when_open(in_turn_of(self, [](CommandPump& pump) { pump.forward(); }));
    } catch (const Error& error) {
      append_frame(text, FrameKind::Failed, canonical_json(error_document(error)));
      return finish(std::move(text));
    }
    exchange_->send(std::move(text), [self] { self->forward(); });
  }

  void finish(std::string last) {
    finished_ = true;
    exchange_->send(std::move(last), nullptr);
    drop();
    say_farewell(exchange_);
  }

  void hear() {
    const auto self = shared_from_this();
    exchange_->receive([self](std::string_view piece) {
      if (piece.empty()) return self->exchange_->forsake();
      // What comes for a command that has ended only tells that the client is there.
      if (self->finished_) return self->hear();
      self->frames_.add(piece);
      self->obey();
    });
  }

  // What the client wants of the command, as far as that takes it: the rest waits, and the client with it.
  void obey() {
    try {
      while (stream_) {
        if (!wish_) wish_ = frames_.next();
        if (!wish_) break;
        if (!deaf_ && input_ && !input_->open())
          return input_->when_open(in_turn_of(shared_from_this(), [](CommandPump& pump) { pump.obey(); }));
        carry_out();
      }
    } catch (const Error& error) {
      finish(frame(FrameKind::Failed, error_document(error)));
    }
    hear();
  }

  void carry_out() {
    const std::string_view payload = std::string_view(wish_->payload).substr(done_);
    const FrameKind kind = wish_->kind;
    const std::size_t part = kind == FrameKind::Stdin ? std::min(payload.size(), ExecStream::kPromptInput) : 0;
    if (kind != FrameKind::Stdin && kind != FrameKind::StdinEnd && kind != FrameKind::Resize)
      throw usage_error("a frame of kind " + std::to_string(static_cast<int>(kind)) + " means nothing to a command");
    std::uint64_t rows = 0, columns = 0;
    if (kind == FrameKind::Resize) {
      const Json size = wish_->json();
      rows = json_u64(size, "rows");
      columns = json_u64(size, "columns");
    }
    try {
      if (deaf_) {
      } else if (kind == FrameKind::Stdin) {
        stream_->write_stdin(payload.substr(0, part));
      } else if (kind == FrameKind::StdinEnd) {
        stream_->close_stdin();
      } else {
        stream_->resize(static_cast<std::uint16_t>(rows), static_cast<std::uint16_t>(columns));
      }
    } catch (const Error&) {
      // It has ended meanwhile; its last event tells how.
      deaf_ = true;
    }
    done_ += part;
    if (kind == FrameKind::Stdin && done_ < wish_->payload.size()) return;
    wish_.reset();
    done_ = 0;
  }

  void drop() {
    output_.reset();
    input_.reset();
    stream_.reset();
    held_.reset();
  }

  const std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<ExecStream> stream_;
  const std::string sandbox_;
  std::optional<Gate> output_, input_;
  Held held_;
  FrameReader frames_{kLongestInput};
  std::optional<Frame> wish_;
  std::size_t done_ = 0;
  bool finished_ = false, deaf_ = false;
};

}  // namespace

void pump_command(std::shared_ptr<Exchange> exchange, std::unique_ptr<ExecStream> stream, std::string sandbox,
                  Readiness& readiness, Held held) {
  const auto pump = std::make_shared<CommandPump>(std::move(exchange), std::move(stream), std::move(sandbox), readiness,
                                                  std::move(held));
  pump->exchange().in_turn([pump] { pump->begin(); });
}

}  // namespace dsec::remote
