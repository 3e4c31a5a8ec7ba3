#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>

#include "core/engine/engine.h"
#include "runners/container/channel.h"

namespace dsec::runners {

/// Starts a command in the sandbox of `directory`, whose keeper `channel` leads to, and returns the client's end of it.
/// Throws Error when the keeper refuses it.
/// Null when the keeper knows its op_id already.
std::unique_ptr<engine::ExecStream> start_exec(const std::filesystem::path& directory, Channel channel,
                                               const ExecSpec& spec);
/// What is kept of a running command's output after `from`, then live. Empty when it has ended.
std::unique_ptr<engine::ExecStream> attach_exec(const std::filesystem::path& directory, Channel channel,
                                                const std::string& exec_id, const engine::AttachFrom& from);
/// What is kept of the output of a command that has ended, and how it did.
std::unique_ptr<engine::ExecStream> replay_exec(const std::filesystem::path& directory, const engine::ExecInfo& info,
                                                const engine::AttachFrom& from);
/// The client's end of a command for a session's shell. Null when its op_id is recorded already.
std::unique_ptr<engine::ExecStream> start_session_command(const std::filesystem::path& directory, Channel channel,
                                                          const std::string& session, const SessionCommand& command);

/// The output of a running command with the time of each piece, until it ends or `go_on` (LogOptions) says no;
/// `caught_up` is called between what is kept and what comes live.
void follow_exec(Channel channel, const std::string& exec_id, const engine::LogSink& sink,
                 const std::function<void()>& caught_up, const std::function<bool()>& go_on);

}  // namespace dsec::runners
