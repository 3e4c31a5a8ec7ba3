#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/engine/engine.h"
#include "runners/container/channel.h"
#include "runners/protocol/guest_channel.h"

namespace dsec::runners {

/// A stream to a service of the guest, through the keeper. Throws Error when the sandbox does not run.
class MachineStream {
 public:
  enum class Life { WithThis, Detached };
  /// `fields`: what the service wants in Open.
  MachineStream(const std::filesystem::path& directory, channel::Service service, const FrameText& fields,
                Life life = Life::WithThis);

  /// All that comes goes to `sink`, until the guest has closed the stream. Throws Error with the guest's own words.
  void receive(const std::function<void(std::string_view)>& sink);
  /// All of `source`, up to its end; then the guest's answer.
  void send_all(int source);
  /// At least one byte, or none at the end; empty when `timeout` has passed.
  std::optional<std::string> next(std::optional<std::chrono::milliseconds> timeout);
  /// The bytes are the caller's from now on.
  UniqueFd release() { return std::move(socket_); }
  /// Waits for the guest's last word. Throws Error when it is one of failure.
  void finish();

 private:
  Channel keeper_;
  UniqueFd socket_;
};

/// A file that the guest was given when it began has another content from now on.
void rewrite_machine_file(const std::filesystem::path& directory, const std::string& path, const std::string& content);

/// What the guest tells of its use.
engine::SandboxStats machine_stats(const std::filesystem::path& directory);

}  // namespace dsec::runners
