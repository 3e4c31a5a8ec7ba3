#include "runners/container/pause.h"

#include "core/base/error.h"
#include "runners/container/channel.h"
#include "runners/container/state_file.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

void ask(Channel& channel, wire::Type request) {
  channel.send(request, {});
  const std::optional<Frame> answer = channel.receive();
  if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
  if (answer->type != wire::Type::Done) throw failure("the sandbox's keeper broke the protocol");
}

void ask_keeper(const fs::path& directory, wire::Type request) {
  std::optional<Channel> channel = Channel::connect(directory);
  if (channel) return ask(*channel, request);
  const engine::RunnerStatus status = read_status(directory);
  throw usage_error("the sandbox is " + std::string(engine::to_string(status.state)) +
                    (status.reason.empty() ? "" : ": " + status.reason));
}

class Held final : public engine::Stillness {
 public:
  explicit Held(std::optional<Channel> channel) : channel_(std::move(channel)) {}

 private:
  std::optional<Channel> channel_;  // the keeper lets go when it is closed; none when nothing runs
};

}  // namespace

void pause_sandbox(const fs::path& directory) { ask_keeper(directory, wire::Type::Pause); }

void resume_sandbox(const fs::path& directory) { ask_keeper(directory, wire::Type::Resume); }

std::unique_ptr<engine::Stillness> hold_sandbox_still(const fs::path& directory) {
  std::optional<Channel> channel = Channel::connect(directory);
  if (channel) ask(*channel, wire::Type::Hold);
  return std::make_unique<Held>(std::move(channel));
}

}  // namespace dsec::runners
