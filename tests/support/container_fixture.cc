#include "tests/support/container_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/mount.h"
#include "core/engine/sandbox_id.h"
#include "runners/container/container_runner.h"

namespace dsec::test {
namespace fs = std::filesystem;
namespace {

void write_text(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

void make_tree(const fs::path& tree) {
  for (const char* name : {"bin", "etc", "tmp", "root", "home/ann", "usr/bin"}) fs::create_directories(tree / name);
  fs::permissions(tree / "tmp", fs::perms::all | fs::perms::sticky_bit);
  const char* busybox = fs::exists("/bin/busybox") ? "/bin/busybox" : "/usr/bin/busybox";
  fs::copy_file(busybox, tree / "bin/busybox");
  const CommandResult applets = run_command({.argv = {busybox, "--list"}});
  std::istringstream names(applets.out);
  for (std::string name; names >> name;)
    if (name != "busybox") fs::create_symlink("busybox", tree / "bin" / name);
  write_text(tree / "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n");
  write_text(tree / "etc/group", "root:x:0:\nann:x:1000:\naudio:x:29:ann\nvideo:x:44:ann,root\nlog:x:50:\n");
  ::chown((tree / "home/ann").c_str(), 1000, 1000);
}

}  // namespace

ContainerFixture::ContainerFixture() : work_(fs::temp_directory_path()) {
  if (::geteuid() != 0) FAIL("sandbox tests need root");
  ::chmod(work_.path().c_str(), 0755);
  make_tree(tree());
  home_ = engine::Home::open(work_.path() / "home");
  runner_ = runners::make_container_runner(*home_);
}

ContainerFixture::~ContainerFixture() {
  for (const fs::path& directory : directories_) {
    try {
      runner_->reclaim(directory);
    } catch (const Error& error) {
      WARN(error.message());
    }
  }
  runner_->release_shared();
}

fs::path ContainerFixture::start(const SandboxSpec& spec) {
  const std::string id = home_->host_id() + engine::random_id(16);
  const fs::path directory = home_->sandboxes() / id;
  make_directories(directory, 0700);
  engine::Lease{id, engine::ProcessIdentity::self(), std::chrono::system_clock::now(), spec}.write(directory);
  directories_.push_back(directory);
  start_at(directory, spec);
  return directory;
}

void ContainerFixture::start_at(const fs::path& directory, const SandboxSpec& spec) {
  engine::RunnerRequest request;
  request.id = directory.filename();
  request.directory = directory;
  request.spec = spec;
  request.stack.lowers.push_back(clone_mount(tree()));
  runner_->start(std::move(request));
}

ContainerFixture::Outcome ContainerFixture::finish(engine::ExecStream& stream, const std::string& input) {
  if (!input.empty()) {
    stream.write_stdin(input);
    stream.close_stdin();
  }
  Outcome outcome;
  for (;;) {
    const std::optional<engine::ExecEvent> event = stream.next(std::chrono::seconds(60));
    if (!event) throw failure("the command says nothing for a minute");
    if (event->kind == engine::ExecEvent::Kind::Exited) {
      outcome.result = event->result;
      return outcome;
    }
    (event->kind == engine::ExecEvent::Kind::Stdout ? outcome.out : outcome.err) += event->data;
  }
}

ContainerFixture::Outcome ContainerFixture::run(const fs::path& directory, const ExecSpec& spec) {
  return finish(*runner_->exec(directory, spec));
}

ContainerFixture::Outcome ContainerFixture::run(const fs::path& directory, const std::string& script) {
  return run(directory, shell(script));
}

namespace {

// Dead, and orphaned by a keeper that was killed: when the host's init looks for it is not ours to say.
bool waits_for_the_hosts_init(const fs::path& process) {
  const std::string stat = read_file(process / "stat", 1 << 20);
  return stat.substr(std::min(stat.rfind(')'), stat.size())).starts_with(") Z 1 ");
}

}  // namespace

std::vector<std::string> ContainerFixture::processes() const {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    for (const char* file : {"cgroup", "cmdline"}) {
      try {
        const std::string text = read_file(entry.path() / file, 1 << 20);
        if (text.find("/" + home_->host_id()) == std::string::npos || waits_for_the_hosts_init(entry.path())) continue;
        found.push_back(pid + " " + text);
        break;
      } catch (const Error&) {
        // It ended meanwhile.
      }
    }
  }
  return found;
}

std::vector<std::string> ContainerFixture::cgroups() const {
  std::vector<std::string> found;
  std::error_code ignored;
  for (fs::recursive_directory_iterator at("/sys/fs/cgroup", ignored), end; at != end; at.increment(ignored))
    if (at->path().filename().native().starts_with(home_->host_id())) found.push_back(at->path());
  return found;
}

ExecSpec command(std::vector<std::string> argv) {
  ExecSpec spec;
  spec.argv = std::move(argv);
  return spec;
}

ExecSpec shell(std::string script) { return command({"/bin/sh", "-c", std::move(script)}); }

}  // namespace dsec::test
