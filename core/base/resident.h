#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec {

/// A program of dsec's own that is started when somebody needs it, serves all processes of a home over a
/// SOCK_SEQPACKET socket there, and ends by itself when nobody needs it any more. Names are those of files in `run`.
struct Resident {
  std::string title;    ///< for messages: "egress gateway"
  std::string program;  ///< beside dsec, or in ../libexec/dsec
  std::filesystem::path run;
  std::string socket, lock, log;
  std::size_t longest_message = 64 << 10;  ///< bytes
};

/// How it is started. It finds its listening socket as descriptor 3 and, if given, cgroup.procs of the group that it
/// shall live in as 4; what it says goes to its log. Its first process ends with 0 when it is ready.
struct ResidentStart {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  int procs = -1;
  std::vector<int> descriptors;  ///< which it finds from 5 on
};

/// Beside the running program, or in ../libexec/dsec. Throws Error.
std::filesystem::path resident_program(const std::string& name);
/// An invalid descriptor when none listens. What is received later waits 10 s at most.
UniqueFd connect_resident(const Resident& resident);
/// Connects, after starting it unless somebody else has; one process at a time does.
UniqueFd start_resident(const Resident& resident, const ResidentStart& start);

/// One message with descriptors. Throws Error.
void send_message(int socket, std::string_view text, const std::vector<int>& descriptors = {});
/// The next message of any length, and its descriptors; empty when the other side has closed. Throws Error.
std::optional<std::string> receive_message(int socket, std::vector<UniqueFd>* descriptors = nullptr);

}  // namespace dsec
