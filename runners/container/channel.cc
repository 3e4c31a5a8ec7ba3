#include "runners/container/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/files.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

FrameText& FrameText::strs(const std::vector<std::string>& values) {
  u32(static_cast<std::uint32_t>(values.size()));
  for (const std::string& value : values) str(value);
  return *this;
}

KeeperGone::KeeperGone() : Error(ErrorKind::Failed, "the sandbox's keeper is gone") {}

std::optional<Channel> Channel::connect(const fs::path& directory) {
  UniqueFd folder(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return std::nullopt;
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("make a socket");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // An address holds 108 bytes only, and paths are longer.
  const std::string name = "/proc/self/fd/" + std::to_string(folder.get()) + "/" + wire::kSocketName;
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOENT || errno == ECONNREFUSED) return std::nullopt;
    throw system_error("connect to the keeper in " + quote(directory.native()));
  }
  return Channel(std::move(socket));
}

void Channel::send(wire::Type type, std::string_view text, std::span<const int> descriptors) const {
  if (text.size() > wire::kMaxFrame)
    throw usage_error("a request of " + std::to_string(text.size()) + " bytes is too long for the sandbox's keeper");
  const wire::FrameHeader header{static_cast<std::uint32_t>(text.size()), type, 0};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += text;
  std::vector<char> control(descriptors.empty() ? 0 : CMSG_SPACE(descriptors.size_bytes()));
  for (std::size_t done = 0; done < bytes.size();) {
    iovec part{bytes.data() + done, bytes.size() - done};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (done == 0 && !descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
      std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
    }
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) throw KeeperGone();
    if (sent < 0) throw system_error("talk to the sandbox's keeper");
    done += static_cast<std::size_t>(sent);
  }
}

std::optional<Frame> Channel::receive(std::optional<milliseconds> timeout) {
  const auto end = steady_clock::now() + timeout.value_or(milliseconds(0));
  std::array<char, 65536> chunk;
  for (;;) {
    const std::size_t have = received_.size() - used_;
    wire::FrameHeader header = {};
    if (have >= sizeof header) {
      std::memcpy(&header, received_.data() + used_, sizeof header);
      if (header.length > wire::kMaxFrame) throw failure("the sandbox's keeper broke the protocol");
      if (have >= sizeof header + header.length) {
        Frame frame{header.type, received_.substr(used_ + sizeof header, header.length), std::move(descriptors_)};
        descriptors_.clear();
        used_ += sizeof header + header.length;
        if (used_ == received_.size()) received_.clear(), used_ = 0;
        return frame;
      }
    }
    if (timeout) {
      const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
      pollfd waiting{socket_.get(), POLLIN, 0};
      const int ready = ::poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
      if (ready == 0) return std::nullopt;
      if (ready < 0 && errno == EINTR) continue;
    }
    if (used_ > 0) received_.erase(0, used_), used_ = 0;
    iovec part{chunk.data(), chunk.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * wire::kSpoolFiles)];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || (got < 0 && errno == ECONNRESET)) throw KeeperGone();
    if (got < 0) throw system_error("hear from the sandbox's keeper");
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      std::vector<int> fds((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(fds.data(), CMSG_DATA(head), fds.size() * sizeof(int));
      for (const int fd : fds) descriptors_.emplace_back(fd);
    }
    received_.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

Frame request(Channel& channel, wire::Type type, std::string_view text, std::optional<milliseconds> timeout) {
  channel.send(type, text);
  std::optional<Frame> answer = channel.receive(timeout);
  if (!answer) throw failure("the sandbox's keeper gives no answer");
  if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
  return std::move(*answer);
}

void Channel::hang_up() const noexcept { ::shutdown(socket_.get(), SHUT_WR); }

Error keeper_error(const Frame& frame) {
  wire::Reader reader = frame.reader();
  const auto error = static_cast<int>(reader.u32());
  const auto step = reader.str(), object = reader.str();
  std::string text(step.data, step.size);
  if (object.size) text += " " + quote({object.data, object.size});
  return error ? system_error(text, error) : failure(text);
}

}  // namespace dsec::runners
