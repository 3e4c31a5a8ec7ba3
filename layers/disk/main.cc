#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/give_up_rights.h"
#include "layers/disk/disk_holder.h"
#include "layers/disk/disk_protocol.h"
#include "layers/disk/disk_server.h"

// dsec-disk: serves the writable disk of one machine. dsec starts it with the descriptors of disk_protocol.h; its
// arguments are the disk, the socket to speak NBD at, and how many descriptors of each kind follow. That process starts
// the holder, which starts the server; both are this program again. The machine at the other end may be anybody's, so
// the server sees nothing but the disk, and has no right.

namespace {

using namespace dsec;
using namespace dsec::layers;

UniqueFd inherited(int fd) {
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) throw system_error("find descriptor " + std::to_string(fd));
  return UniqueFd(fd);
}

std::vector<UniqueFd> inherited(int first, int count) {
  std::vector<UniqueFd> all;
  for (int i = 0; i < count; ++i) all.push_back(inherited(first + i));
  return all;
}

int count_of(const char* text) {
  const std::string_view word = text;
  int count = -1;
  const auto parsed = std::from_chars(word.data(), word.data() + word.size(), count);
  if (parsed.ptr != word.data() + word.size() || count < 0 || count > 256)
    throw failure(quote(word) + " is no number of descriptors");
  return count;
}

void leave_caller() {
  ::setsid();
  ::umask(077);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);
}

// A process has joined when it has written this; the thread that calls is its only one.
void join_group(int file) {
  if (::write(file, "0", 1) < 0) throw system_error("join the control group of the machine");
}

UniqueFd listen_at(const std::filesystem::path& path) {
  // By the directory's descriptor, since the path of a socket may have 107 bytes only.
  const UniqueFd directory = open_file(path.parent_path(), O_PATH | O_DIRECTORY);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory.get(),
                path.filename().c_str());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("open a socket");
  ::unlink(path.c_str());
  const mode_t before = ::umask(0177);
  const int bound = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  ::umask(before);
  if (bound != 0 || ::listen(socket.get(), 16) != 0) throw system_error("listen at " + quote(path.native()));
  return socket;
}

// The first process: returns when the disk is served, or cannot be.
int start(const std::string& program, const std::string& disk, const char* socket, int groups, int below) {
  for (const UniqueFd& group : inherited(kFirstFd, groups)) join_group(group.get());
  DiskDescriptors descriptors{inherited(kControlFd), {}, inherited(kFirstFd + groups, below)};
  // What dsec's caller left open: the other end of a pipe would wait for as long as a machine lives.
  ::syscall(SYS_close_range, static_cast<unsigned>(kFirstFd + groups + below), ~0u, 0);
  descriptors.nbd = listen_at(socket);
  auto [ready, told] = make_pipe();
  start_holder(program, disk, descriptors, told.get());
  told.reset();
  descriptors = {};
  char word = 0;
  // Without its destructors: the holder lives on.
  ::_exit(::read(ready.get(), &word, 1) == 1 ? 0 : 1);
}

void serve(const std::string& disk, DiskDescriptors descriptors, UniqueFd ready) {
  if (::chdir(disk.c_str()) != 0) throw system_error("enter " + quote(disk));
  // It sees nothing but the disk that it stands in, and that before it opens anything: a link that lies there is
  // perhaps of the server before it, which was in the hands of the machine.
  if (::geteuid() == 0 && ::chroot(".") != 0) throw system_error("see nothing but the disk");
  DiskStack stack(".", std::move(descriptors.below));
  DiskServer server(stack, std::move(descriptors.control), std::move(descriptors.nbd));
  // Files of its own remain, and layers that it can read alone.
  give_up_rights();
  if (ready && ::write(ready.get(), "1", 1) < 0 && errno != EPIPE) throw system_error("tell that the disk is served");
  ready.reset();
  server.run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    struct stat info = {};
    if (argc < 4 || ::fstat(kControlFd, &info) != 0 || !S_ISSOCK(info.st_mode)) {
      std::cerr << "dsec-disk is started by dsec; see man dsec-disk\n";
      return 2;
    }
    const std::string program = argv[0], what = argv[1];
    if (argc == 5) return start(program, argv[1], argv[2], count_of(argv[3]), count_of(argv[4]));
    const std::string disk = argv[2];
    const int below = count_of(argv[3]);
    leave_caller();
    DiskDescriptors descriptors{inherited(kControlFd), inherited(kNbdFd), inherited(kFirstFd, below)};
    UniqueFd ready;
    if (::fcntl(kFirstFd + below, F_GETFD) >= 0) ready = inherited(kFirstFd + below);
    if (what != kHoldDisk) {
      serve(disk, std::move(descriptors), std::move(ready));
      return 0;
    }
    ::prctl(PR_SET_NAME, "dsec-disk-hold", 0, 0, 0);
    if (::chdir("/") != 0) throw system_error("chdir /");
    return hold_disk(program, disk, descriptors, std::move(ready));
  } catch (const Error& error) {
    std::cerr << "dsec-disk: " << error.message() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "dsec-disk: " << error.what() << '\n';
  }
  return 1;
}
