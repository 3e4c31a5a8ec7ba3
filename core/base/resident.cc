#include "core/base/resident.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/received_descriptors.h"

namespace dsec {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMostDescriptors = 16;

// By the directory's descriptor, since the path of a socket may have 107 bytes only.
sockaddr_un socket_address(const UniqueFd& directory, const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory.get(), name.c_str());
  return address;
}

UniqueFd seqpacket(std::size_t longest_message) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("open a socket");
  const int room = 2 * static_cast<int>(longest_message);
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) != 0)
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  const timeval patience = {10, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}

}  // namespace

fs::path resident_program(const std::string& name) {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& candidate : {here / name, here / "../libexec/dsec" / name})
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  throw failure(name + " is neither beside the program in " + quote(here.native()) + " nor in ../libexec/dsec")
      .hint("install dsec with its libexec directory");
}

UniqueFd connect_resident(const Resident& resident) {
  const UniqueFd directory = open_file(resident.run, O_PATH | O_DIRECTORY);
  const sockaddr_un address = socket_address(directory, resident.socket);
  UniqueFd socket = seqpacket(resident.longest_message);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
  if (errno == ENOENT || errno == ECONNREFUSED) return {};
  throw system_error("connect to the " + resident.title);
}

UniqueFd start_resident(const Resident& resident, const ResidentStart& start) {
  const FileLock lock(resident.run / resident.lock, FileLock::Mode::Exclusive);
  if (UniqueFd socket = connect_resident(resident)) return socket;
  const UniqueFd directory = open_file(resident.run, O_PATH | O_DIRECTORY);
  const sockaddr_un address = socket_address(directory, resident.socket);
  const UniqueFd listener = seqpacket(resident.longest_message);
  ::unlink((resident.run / resident.socket).c_str());
  // The mode of a socket is that of its file from the first moment on; the umask would be that of all threads.
  if (::fchmod(listener.get(), 0600) != 0 ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 1024) != 0)
    throw system_error("listen for the " + resident.title);

  const fs::path log = resident.run / resident.log;
  const UniqueFd null = open_file("/dev/null", O_RDWR), messages = open_file(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  SpawnOptions options;
  options.argv = {resident_program(resident.program).native()};
  options.argv.insert(options.argv.end(), start.arguments.begin(), start.arguments.end());
  options.environment = start.environment;
  options.descriptors = {{null.get(), 1}, {messages.get(), 2}, {listener.get(), 3}};
  if (start.procs >= 0) options.descriptors.emplace_back(start.procs, 4);
  for (std::size_t i = 0; i < start.descriptors.size(); ++i)
    options.descriptors.emplace_back(start.descriptors[i], 5 + static_cast<int>(i));
  options.kill_with_parent = false;
  ChildProcess program = ChildProcess::spawn(options);
  if (const ExitStatus status = program.wait(); !status.ok()) {
    std::string said = read_file(log, 4096);
    while (!said.empty() && said.back() == '\n') said.pop_back();
    throw failure("the " + resident.title + " did not start: " + (said.empty() ? status.str() : said));
  }
  UniqueFd socket = connect_resident(resident);
  if (!socket)
    throw failure("the " + resident.title + " ended at once").hint("its last words are in " + quote(log.native()));
  return socket;
}

void send_message(int socket, std::string_view text, const std::vector<int>& descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)] = {};
  iovec part = {const_cast<char*>(text.data()), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) throw system_error("send a message");
}

std::optional<std::string> receive_message(int socket, std::vector<UniqueFd>* descriptors) {
  ssize_t length = 0;
  while ((length = ::recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC)) < 0 && errno == EINTR) {
  }
  if (length < 0 && errno == ECONNRESET) return std::nullopt;
  if (length < 0) throw system_error("wait for an answer");
  std::string text(length > 0 ? static_cast<std::size_t>(length) : 1, '\0');
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)];
  iovec part = {text.data(), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got <= 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(got));
  std::vector<UniqueFd> came = take_descriptors(message);
  if (descriptors) std::move(came.begin(), came.end(), std::back_inserter(*descriptors));
  return text;
}

}  // namespace dsec
