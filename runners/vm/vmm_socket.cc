#include "runners/vm/vmm_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

// Not connected, with errno, while nobody listens there.
UniqueFd try_connect(const std::filesystem::path& socket) {
  const UniqueFd place(::open(socket.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!place) return {};
  struct stat info = {};
  if (::fstat(place.get(), &info) != 0) throw system_error("stat it");
  if (!S_ISSOCK(info.st_mode)) throw failure("it is no socket");
  UniqueFd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection) throw system_error("make a socket");
  // By its descriptor: also a path that is longer than an address may be.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "/proc/self/fd/" + std::to_string(place.get());
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return connection;
  return {};
}

}  // namespace

UniqueFd connect_to_vmm(const std::filesystem::path& socket, std::chrono::milliseconds patience) {
  return attempt("cannot connect to " + quote(socket.native()), [&] {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      if (UniqueFd connection = try_connect(socket)) return connection;
      const int error = errno;
      if (error != ENOENT && error != ECONNREFUSED && error != EAGAIN && error != EINTR)
        throw system_error("connect", error);
      if (std::chrono::steady_clock::now() >= until) throw system_error("connect", error);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
}

}  // namespace dsec::runners
