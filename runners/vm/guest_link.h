#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "runners/container/channel.h"
#include "runners/protocol/guest_channel.h"

namespace dsec::runners {

/// What the agent says of its guest.
struct GuestWelcome {
  std::string kernel;  ///< release
  std::uint64_t memory = 0;
  std::chrono::microseconds since_boot{};
  channel::AgentState state{};
};

/// The host's end of a machine's channel before the keeper has it: control frames alone, one question at a time. A
/// guest that says nothing, too much or nonsense makes a call end with an Error.
class GuestLink {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  /// `alive` is asked a few times a second while the guest is waited for; what it throws ends the wait.
  GuestLink(UniqueFd channel, std::function<void()> alive) : channel_(std::move(channel)), alive_(std::move(alive)) {}

  GuestWelcome hello(Deadline until);
  /// `configuration`: the fields of Configure. Returns how long after its kernel began the sandbox was ready.
  std::chrono::microseconds configure(std::string_view configuration, Deadline until);
  /// It says nothing more until the next hello(), so that it can be saved.
  void quiesce(Deadline until);
  /// Of a guest that was saved with its sandbox, between hello() and what lets it go on: one of its own files, and what
  /// it is called. `environment`: of commands from now on.
  void rewrite(const std::string& path, std::string_view content, Deadline until);
  void renew(std::string_view machine_id, const std::string& hostname, const std::vector<std::string>& environment,
             Deadline until);
  /// For the keeper. Throws Error when the guest has already said something that nobody asked for.
  UniqueFd release();

 private:
  struct Answer {
    channel::Type type{};
    std::string text;
  };
  void send(channel::Type type, std::string_view text, Deadline until);
  Answer receive(Deadline until);
  Answer ask(channel::Type type, std::string_view text, channel::Type expected, Deadline until);
  void wait(short events, Deadline until) const;

  UniqueFd channel_;
  std::function<void()> alive_;
  std::string received_;
};

}  // namespace dsec::runners
