#include "core/engine/command_again.h"

#include <algorithm>
#include <optional>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

constexpr std::size_t kPipe = 64 << 10;
// Of each stream, held while it is compared; no trajectory keeps more unless it was asked to.
constexpr std::size_t kMostOutput = 64 << 20;

void keep(std::string& kept, std::string_view data) {
  kept += data.substr(0, kMostOutput - std::min(kMostOutput, kept.size()));
}

}  // namespace

CommandAgain::CommandAgain(std::unique_ptr<ExecStream> stream, std::string input, bool open_stdin)
    : input_(std::move(input)), stream_(std::move(stream)) {
  if (!open_stdin) return;
  if (input_.size() <= kPipe)
    give_input();
  else
    writer_ = std::thread([this] { give_input(); });
}

CommandAgain::~CommandAgain() {
  if (writer_.joinable()) writer_.join();
}

void CommandAgain::give_input() {
  try {
    if (!input_.empty()) stream_->write_stdin(input_);
    stream_->close_stdin();
  } catch (const Error&) {
    // The command ended without reading it all.
  }
}

ExecResult CommandAgain::finish(Output& output) {
  while (const std::optional<ExecEvent> event = stream_->next()) {
    if (event->kind == ExecEvent::Kind::Exited) return event->result;
    keep(event->kind == ExecEvent::Kind::Stderr ? output.err : output.out, event->data);
    keep(output.both, event->data);
  }
  return {};
}

}  // namespace dsec::engine
