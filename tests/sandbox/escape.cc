#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/engine/sandbox_id.h"
#include "tests/support/container_fixture.h"

using namespace dsec;
using namespace dsec::test;
namespace fs = std::filesystem;

namespace {

/// What must not be reached from inside: a file, an abstract socket and a TCP port of the host.
class Outside {
 public:
  explicit Outside(const fs::path& directory)
      : marker_(directory / "marker"), name_("dsec-test-" + engine::random_id(12)) {
    std::ofstream(marker_) << "SECRET";
    abstract_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un unix_address{};
    unix_address.sun_family = AF_UNIX;
    std::memcpy(unix_address.sun_path + 1, name_.data(), name_.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    REQUIRE(::bind(abstract_.get(), reinterpret_cast<const sockaddr*>(&unix_address), size) == 0);
    REQUIRE(::listen(abstract_.get(), 4) == 0);
    tcp_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(::bind(tcp_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
    REQUIRE(::listen(tcp_.get(), 4) == 0);
    REQUIRE(::getsockname(tcp_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    port_ = ntohs(address.sin_port);
  }

  std::vector<std::string> arguments() const {
    return {"marker=" + marker_.native(), "abstract=" + name_, "port=" + std::to_string(port_)};
  }

 private:
  fs::path marker_;
  std::string name_;
  UniqueFd abstract_, tcp_;
  int port_ = 0;
};

/// Built beside this program.
std::string probe() { return fs::read_symlink("/proc/self/exe").parent_path() / "probe_escape"; }

std::vector<std::string> groups() {
  const CommandResult listed = run_command({.argv = {probe(), "list"}});
  REQUIRE(listed.status.ok());
  std::istringstream in(listed.out);
  std::vector<std::string> names;
  for (std::string name; std::getline(in, name);) names.push_back(name);
  return names;
}

/// Every attempt of every group, in a sandbox of this kind, as this user.
void try_everything(const SandboxSpec& spec, const std::string& user) {
  ContainerFixture host;
  const Outside outside(host.work());
  fs::copy_file(probe(), host.tree() / "probe");
  const auto sandbox = host.start(spec);
  std::size_t attempts = 0;
  for (const std::string& group : groups()) {
    ExecSpec exec = command({"/probe", group});
    exec.user = user;
    for (const std::string& argument : outside.arguments()) exec.argv.push_back(argument);
    const auto outcome = host.run(sandbox, exec);
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      INFO(group << ": " << line);
      CHECK(line.rfind("ESCAPED", 0) != 0);
      attempts += line.rfind("denied", 0) == 0;
    }
    INFO(outcome.out << outcome.err << outcome.result.detail);
    CHECK(outcome.result.exit_code == 0);
  }
  CHECK(attempts > 120);
  // It has survived all of it, and so has the host.
  CHECK(host.run(sandbox, "echo alive").out == "alive\n");
  CHECK(host.runner().status(sandbox).state == engine::SandboxState::Running);
}

}  // namespace

TEST_CASE("nothing that root tries inside a sandbox leads out of it", "[escape]") { try_everything({}, "root"); }

TEST_CASE("nothing that a user tries inside a sandbox leads out of it", "[escape]") { try_everything({}, "ann"); }

TEST_CASE("nothing that the host's root ids try inside a sandbox leads out of it", "[escape]") {
  SandboxSpec spec;
  spec.userns = UserNamespace::Host;
  try_everything(spec, "root");
}

TEST_CASE("a sandbox shares no namespace with the host", "[escape]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  for (const char* kind : {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}) {
    const std::string inside = host.run(sandbox, std::string("readlink /proc/self/ns/") + kind).out;
    const std::string here = fs::read_symlink(std::string("/proc/self/ns/") + kind).native() + "\n";
    INFO(kind << ": " << inside);
    CHECK(inside.rfind(std::string(kind) + ":[", 0) == 0);
    CHECK(inside != here);
  }
}

TEST_CASE("processes of a sandbox belong to ids without rights outside", "[escape]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  const auto stream = host.runner().exec(sandbox, shell("echo started; exec sleep 1000"));
  while (const auto event = stream->next(std::chrono::seconds(10)))
    if (event->data == "started\n") break;
  bool seen = false;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream cgroup(entry.path() / "cgroup"), status(entry.path() / "status"), comm(entry.path() / "comm");
    const std::string text{std::istreambuf_iterator<char>(cgroup), {}};
    std::string name, line;
    std::getline(comm, name);
    // busybox is called exe for a moment when its shell executes another of its programs.
    if (text.find(sandbox.filename().native()) == std::string::npos || name == "dsec-init") continue;
    while (std::getline(status, line)) {
      if (line.rfind("Uid:", 0) != 0) continue;
      std::istringstream ids(line.substr(4));
      for (unsigned id = 0; ids >> id;) {
        CHECK(id >= 0x10000000u);
        seen = true;
      }
    }
  }
  CHECK(seen);
  stream->signal(SIGKILL);
}
