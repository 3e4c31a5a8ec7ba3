#include "runners/vm/machine_streams.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "core/base/error.h"
#include "core/engine/lease.h"
#include "runners/container/state_file.h"
#include "runners/isolation/cgroups.h"

namespace dsec::runners {
namespace {

constexpr std::chrono::seconds kAnswer{30};

Channel keeper_of_machine(const std::filesystem::path& directory) {
  std::optional<Channel> channel = Channel::connect(directory);
  if (channel) return std::move(*channel);
  const engine::RunnerStatus status = read_status(directory);
  throw usage_error("the sandbox is " + std::string(engine::to_string(status.state)) +
                    ", and only a machine that runs has its files")
      .hint("copy what is wanted out of it before it ends");
}

// The guest's text: lines, of which the first is what was attempted.
Error guest_error(const std::string& message, int error) {
  std::vector<std::string> lines;
  std::istringstream text(message.substr(0, 4096));
  for (std::string line; std::getline(text, line) && lines.size() < 8;) {
    for (char& c : line)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    lines.push_back(line);
  }
  if (lines.empty()) lines.push_back(error ? errno_text(error) : "the guest does not say why");
  Error made = failure(lines.back());
  for (std::size_t i = lines.size() - 1; i-- > 0;) made.context(lines[i]);
  return made;
}

}  // namespace

MachineStream::MachineStream(const std::filesystem::path& directory, channel::Service service, const FrameText& fields,
                             Life life)
    : keeper_(keeper_of_machine(directory)) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw system_error("make a socket pair");
  socket_.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  const std::string text = FrameText()
                               .u32(life == Life::Detached ? wire::kRelayDetached : 0u)
                               .u16(static_cast<std::uint16_t>(service))
                               .text() +
                           fields.text();
  const int fd = theirs.get();
  keeper_.send(wire::Type::Relay, text, std::span<const int>(&fd, 1));
}

std::optional<std::string> MachineStream::next(std::optional<std::chrono::milliseconds> timeout) {
  pollfd ready{socket_.get(), POLLIN, 0};
  for (;;) {
    const int polled = ::poll(&ready, 1, timeout ? static_cast<int>(timeout->count()) : -1);
    if (polled == 0) return std::nullopt;
    if (polled < 0 && errno == EINTR) continue;
    std::string bytes(65536, '\0');
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read from the guest");
    bytes.resize(static_cast<std::size_t>(got));
    return bytes;
  }
}

void MachineStream::receive(const std::function<void(std::string_view)>& sink) {
  for (;;) {
    const std::optional<std::string> bytes = next(std::nullopt);
    if (bytes->empty()) break;
    sink(*bytes);
  }
  finish();
}

void MachineStream::send_all(int source) {
  std::string bytes(65536, '\0');
  bool refused = false;
  for (ssize_t got = 0; !refused;) {
    got = ::read(source, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read what is to be copied");
    if (got == 0) break;
    for (ssize_t done = 0; done < got && !refused;) {
      const ssize_t sent =
          ::send(socket_.get(), bytes.data() + done, static_cast<std::size_t>(got - done), MSG_NOSIGNAL);
      if (sent > 0) done += sent;
      // The guest has had enough, and says why.
      refused = sent < 0 && errno != EINTR;
    }
  }
  ::shutdown(socket_.get(), SHUT_WR);
  finish();
}

void MachineStream::finish() {
  std::optional<Frame> answer = keeper_.receive();
  while (answer && answer->type != wire::Type::Relayed) {
    if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
    answer = keeper_.receive();
  }
  wire::Reader reader = answer->reader();
  const auto error = static_cast<int>(reader.u32());
  const auto message = reader.str();
  if (!reader.ok()) throw failure("the sandbox's keeper broke the protocol");
  if (error != 0 || message.size != 0) throw guest_error({message.data, message.size}, error);
}

void rewrite_machine_file(const std::filesystem::path& directory, const std::string& path, const std::string& content) {
  Channel keeper = keeper_of_machine(directory);
  const Frame answer = request(
      keeper, wire::Type::Control,
      FrameText().u16(static_cast<std::uint16_t>(channel::Type::Rewrite)).str(path).str(content).text(), kAnswer);
  wire::Reader reader = answer.reader();
  if (answer.type != wire::Type::Controlled || static_cast<channel::Type>(reader.u16()) != channel::Type::Done)
    throw failure("the guest did not take the new " + quote(path));
}

engine::SandboxStats machine_stats(const std::filesystem::path& directory) {
  Channel keeper = keeper_of_machine(directory);
  const Frame answer = request(keeper, wire::Type::Control,
                               FrameText().u16(static_cast<std::uint16_t>(channel::Type::Statistics)).text(), kAnswer);
  wire::Reader reader = answer.reader();
  const auto type = static_cast<channel::Type>(reader.u16());
  if (answer.type != wire::Type::Controlled || type != channel::Type::Figures)
    throw failure("the guest does not tell what it uses");
  engine::SandboxStats stats;
  for (std::uint32_t left = reader.u32(); left > 0 && reader.ok(); --left) {
    const auto figure = static_cast<channel::Figure>(reader.u32());
    const std::uint64_t value = reader.u64();
    switch (figure) {
      case channel::Figure::MemoryCurrent:
        stats.memory_bytes = value;
        break;
      case channel::Figure::MemoryPeak:
        stats.memory_peak = value;
        break;
      case channel::Figure::CpuUsec:
        stats.cpu_usec = value;
        break;
      case channel::Figure::Pids:
        stats.pids = value;
        break;
      case channel::Figure::OomKills:
        stats.oom_kills = value;
        break;
      case channel::Figure::DiskBytes:
        stats.disk_bytes = value;
        break;
      default:
        break;
    }
  }
  return stats;
}

}  // namespace dsec::runners
