#pragma once

#include <string>
#include <vector>

#include "core/engine/session.h"
#include "core/model/session_spec.h"
#include "runners/container/channel.h"

namespace dsec::runners {

/// Opens a session in the sandbox whose keeper `channel` leads to. Throws Error when its shell does not come up.
engine::SessionInfo open_session(Channel channel, const SessionSpec& spec);
std::vector<engine::SessionInfo> list_sessions(Channel channel);
void close_session(Channel channel, const std::string& session);

}  // namespace dsec::runners
