#include "runners/container/sessions.h"

#include "core/base/error.h"

namespace dsec::runners {
using std::chrono::milliseconds;
namespace {

// A shell that reads a long start file of its user may take its time.
constexpr milliseconds kOpenTimeout{30'000};

// The keeper sends commands to its standard input and expects it to be interactive; nothing of what it reads at its
// start or keeps for later may depend on the image's users.
const std::vector<std::string> kBashFlags = {"--norc", "--noprofile", "--noediting", "+H", "+o", "history", "-i"};

std::vector<std::string> shell_argv(const std::string& shell) {
  const std::string name = shell.substr(shell.rfind('/') + 1);
  if (shell.empty())
    return {"/bin/sh", "-c",
            "if command -v bash >/dev/null 2>&1; then exec bash --norc --noprofile --noediting +H +o history -i; "
            "else exec sh -i; fi"};
  if (shell != "bash" && shell != "sh" && !shell.starts_with('/'))
    throw usage_error(quote(shell) + " is no shell for a session").hint("use bash, sh or the absolute path of one");
  std::vector<std::string> argv = {shell};
  if (name == "bash")
    argv.insert(argv.end(), kBashFlags.begin(), kBashFlags.end());
  else
    argv.push_back("-i");
  return argv;
}

engine::SessionInfo read_session(const Frame& frame) {
  wire::Reader reader = frame.reader();
  const auto text = [&] {
    const auto value = reader.str();
    return std::string(value.data, value.size);
  };
  engine::SessionInfo info;
  info.id = text();
  info.name = text();
  info.tty = reader.u32() != 0;
  info.opened = std::chrono::system_clock::time_point(std::chrono::microseconds(reader.u64()));
  info.commands = reader.u32();
  info.running = text();
  for (std::uint32_t left = reader.u32(); left > 0 && reader.ok(); --left) info.shell.push_back(text());
  if (!reader.ok()) throw failure("the sandbox's keeper broke the protocol");
  return info;
}

}  // namespace

engine::SessionInfo open_session(Channel channel, const SessionSpec& spec) {
  if (!spec.workdir.empty() && spec.workdir[0] != '/')
    throw usage_error("working directory " + quote(spec.workdir) + " is not absolute");
  FrameText text;
  text.str(spec.name).u32(spec.tty ? wire::kExecTty : 0u).u16(spec.rows).u16(spec.columns);
  text.u64(0).u64(spec.output_limit.value_or(0)).str(spec.user).str(spec.workdir);
  text.strs(shell_argv(spec.shell)).strs(spec.env);
  return read_session(request(channel, wire::Type::SessionOpen, text.text(), kOpenTimeout));
}

std::vector<engine::SessionInfo> list_sessions(Channel channel) {
  std::vector<engine::SessionInfo> found;
  channel.send(wire::Type::SessionList, {});
  while (const std::optional<Frame> frame = channel.receive()) {
    if (frame->type != wire::Type::Session) break;
    found.insert(found.begin(), read_session(*frame));
  }
  return found;
}

void close_session(Channel channel, const std::string& session) {
  request(channel, wire::Type::SessionClose, FrameText().str(session).text());
}

}  // namespace dsec::runners
