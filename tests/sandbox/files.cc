#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <thread>

#include "core/base/error.h"
#include "core/base/mount.h"
#include "tests/support/container_fixture.h"

using namespace dsec;
using namespace dsec::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

struct Host : ContainerFixture {
  engine::OpenLayers layers() {
    return [this] {
      engine::LayerStack stack;
      stack.lowers.push_back(clone_mount(tree()));
      return stack;
    };
  }
  UniqueFd out(const fs::path& sandbox, const std::string& path) {
    UniqueFd tar(::memfd_create("tar", MFD_CLOEXEC));
    runner().copy_out(sandbox, layers(), path, tar.get());
    ::lseek(tar.get(), 0, SEEK_SET);
    return tar;
  }
  void in(const fs::path& sandbox, const std::string& path, const UniqueFd& tar) {
    ::lseek(tar.get(), 0, SEEK_SET);
    runner().copy_in(sandbox, layers(), path, tar.get());
  }
  std::string diff(const fs::path& sandbox) {
    std::string text;
    for (const auto& change : runner().diff(sandbox, layers()))
      text += std::string(1, "ACD"[static_cast<int>(change.kind)]) + ' ' + change.path + '\n';
    return text;
  }
};

/// "name uid:gid mode content" of each entry.
std::map<std::string, std::string> entries(const UniqueFd& tar) {
  ::lseek(tar.get(), 0, SEEK_SET);
  archive* reader = archive_read_new();
  archive_read_support_format_tar(reader);
  REQUIRE(archive_read_open_fd(reader, tar.get(), 65536) == ARCHIVE_OK);
  std::map<std::string, std::string> found;
  archive_entry* entry = nullptr;
  while (archive_read_next_header(reader, &entry) <= ARCHIVE_OK && entry != nullptr) {
    std::string content(static_cast<std::size_t>(archive_entry_size(entry)), '\0');
    if (archive_entry_filetype(entry) == AE_IFREG && !content.empty())
      archive_read_data(reader, content.data(), content.size());
    found[archive_entry_pathname(entry)] =
        std::to_string(archive_entry_uid(entry)) + ':' + std::to_string(archive_entry_gid(entry)) + ' ' + content;
    entry = nullptr;
  }
  archive_read_free(reader);
  return found;
}

}  // namespace

TEST_CASE("files go out of a running sandbox with the ids that they have inside", "[files]") {
  Host host;
  const auto sandbox = host.start();
  REQUIRE(
      host.run(sandbox, "mkdir /d && echo one >/d/a && chown 1000:50 /d/a && ln -s /etc/passwd /d/l && echo two >/d/b")
          .result.exit_code == 0);
  const auto found = entries(host.out(sandbox, "/d"));
  CHECK(found.size() == 4);
  CHECK(found.at("d/a") == "1000:50 one\n");
  CHECK(found.at("d/b") == "0:0 two\n");
  CHECK(found.at("d/") == "0:0 ");
  CHECK(entries(host.out(sandbox, "/etc/passwd")).at("passwd").rfind("0:0 root:x", 0) == 0);
}

TEST_CASE("files come into a running sandbox and belong to whom the stream says", "[files]") {
  Host host;
  const auto sandbox = host.start();
  REQUIRE(host.run(sandbox, "mkdir /d /to && echo one >/d/a && chown 1000:50 /d/a && chmod 4755 /d/a && ln /d/a /d/h")
              .result.exit_code == 0);
  host.in(sandbox, "/to", host.out(sandbox, "/d"));
  CHECK(host.run(sandbox, "stat -c '%u:%g %a %h' /to/d/a; cat /to/d/h").out == "1000:50 4755 2\none\n");
  // In a layer's directory, which has to be copied up first.
  host.in(sandbox, "/etc", host.out(sandbox, "/d/a"));
  CHECK(host.run(sandbox, "stat -c '%u:%g' /etc/a").out == "1000:50\n");
  // On disk owners are those of inside, in a directory that only root enters.
  struct stat info {};
  REQUIRE(::stat((sandbox / "upper/to/d/a").c_str(), &info) == 0);
  CHECK(info.st_uid == 1000);
  REQUIRE(::stat(sandbox.c_str(), &info) == 0);
  CHECK((info.st_mode & 077) == 0);
}

TEST_CASE("files of a sandbox that has ended can be copied, both ways", "[files]") {
  Host host;
  const auto sandbox = host.start();
  REQUIRE(host.run(sandbox, "echo kept >/kept; rm /etc/group").result.exit_code == 0);
  host.runner().stop(sandbox, 0ms);
  CHECK(entries(host.out(sandbox, "/kept")).at("kept") == "0:0 kept\n");
  CHECK(entries(host.out(sandbox, "/etc")).contains("etc/passwd"));
  CHECK_FALSE(entries(host.out(sandbox, "/etc")).contains("etc/group"));
  host.in(sandbox, "/tmp", host.out(sandbox, "/kept"));
  CHECK(entries(host.out(sandbox, "/tmp")).at("tmp/kept") == "0:0 kept\n");
  CHECK(host.diff(sandbox).find("A /tmp/kept\n") != std::string::npos);
}

TEST_CASE("what a sandbox changed is told while it runs and after", "[files]") {
  Host host;
  const auto sandbox = host.start();
  REQUIRE(host.run(sandbox, "echo x >>/etc/passwd; rm /etc/group; mkdir /new; echo y >/new/f; rm -r /home; mkdir /home")
              .result.exit_code == 0);
  const std::string running = host.diff(sandbox);
  for (const char* line :
       {"C /etc\n", "C /etc/passwd\n", "D /etc/group\n", "A /new\n", "A /new/f\n", "C /home\n", "D /home/ann\n"})
    CHECK(running.find(line) != std::string::npos);
  CHECK(running.find("/bin") == std::string::npos);
  host.runner().stop(sandbox, 0ms);
  CHECK(host.diff(sandbox) == running);
}

TEST_CASE("mounts of a sandbox are not copied out of it", "[files]") {
  Host host;
  const auto sandbox = host.start();
  const auto found = entries(host.out(sandbox, "/"));
  CHECK(found.contains("./etc/passwd"));
  for (const auto& [name, text] : found) {
    INFO(name);
    CHECK(name.rfind("./proc/1", 0) == std::string::npos);
    CHECK(name.rfind("./dev/", 0) == (name == "./dev/" ? 0 : std::string::npos));
  }
}

TEST_CASE("a link race inside cannot make cp read or write the host's files", "[files]") {
  Host host;
  const auto sandbox = host.start();
  const fs::path outside = host.work() / "outside";
  fs::create_directories(outside);
  std::ofstream(outside / "passwd") << "SECRET";
  const std::string target = outside.native();
  ExecSpec attack = shell("mkdir -p /w/real /w/store; echo inside >/w/real/passwd; while :; do ln -sfn " + target +
                          " /w/x; ln -sfn /proc/1/root" + target +
                          " /w/x; ln -sfn /w/real /w/x; rm -f /w/real/passwd; "
                          "ln -s " +
                          target +
                          "/passwd /w/real/passwd; rm -f /w/real/passwd; mkfifo /w/real/passwd; "
                          "rm -f /w/real/passwd; echo inside >/w/real/passwd; done");
  const auto stream = host.runner().exec(sandbox, attack);
  REQUIRE(eventually([&] { return host.run(sandbox, "test -e /w/x").result.exit_code == 0; }));
  const UniqueFd evil = [&] {
    host.run(sandbox, "mkdir -p /e; echo EVIL >/e/passwd");
    return host.out(sandbox, "/e/passwd");
  }();
  const auto end = std::chrono::steady_clock::now() + 3s;
  std::size_t reads = 0;
  while (std::chrono::steady_clock::now() < end) {
    for (const char* path : {"/w/x/passwd", "/w/x/", "/w", "/w/real/passwd"}) {
      try {
        for (const auto& [name, text] : entries(host.out(sandbox, path)))
          CHECK(text.find("SECRET") == std::string::npos);
        ++reads;
      } catch (const Error&) {
      }
    }
    try {
      host.in(sandbox, "/w/x", evil);
    } catch (const Error&) {
    }
  }
  stream->signal(SIGKILL);
  CHECK(reads > 10);
  std::ifstream file(outside / "passwd");
  std::string text;
  std::getline(file, text);
  CHECK(text == "SECRET");
  CHECK(std::distance(fs::directory_iterator(outside), {}) == 1);
}

TEST_CASE("a disk limit ends writing inside with an error, and goes with the sandbox", "[files]") {
  Host host;
  SandboxSpec spec;
  spec.limits.disk = 24 << 20;
  host.runner().check(spec);
  const auto sandbox = host.start(spec);
  const auto outcome = host.run(sandbox, "dd if=/dev/zero of=/big bs=64k count=1000; sync; stat -c %s /big");
  // Of a filesystem of that size, or of a project quota.
  CHECK((outcome.err.find("No space left on device") != std::string::npos ||
         outcome.err.find("Disk quota exceeded") != std::string::npos ||
         outcome.err.find("Quota exceeded") != std::string::npos));
  CHECK(std::stoul(outcome.out) < (24u << 20));
  CHECK(std::stoul(outcome.out) > (12u << 20));
  const auto stats = host.runner().stats(sandbox);
  CHECK(stats.disk_limit == 24u << 20);
  CHECK(stats.disk_bytes > 12u << 20);
  CHECK(host.diff(sandbox).find("A /big\n") != std::string::npos);
  CHECK(host.run(sandbox, "rm /big; echo ok >/small").result.exit_code == 0);
  CHECK(entries(host.out(sandbox, "/small")).at("small") == "0:0 ok\n");
  host.runner().stop(sandbox, 0ms);
  CHECK(entries(host.out(sandbox, "/small")).at("small") == "0:0 ok\n");
  host.runner().reclaim(sandbox);
  CHECK_FALSE(fs::exists(sandbox / "disk.img"));
  CHECK(eventually([&] {
    for (const auto& entry : fs::directory_iterator("/sys/block")) {
      std::ifstream backing(entry.path() / "loop/backing_file");
      std::string path;
      if (std::getline(backing, path) && path.find(sandbox.filename().native()) != std::string::npos) return false;
    }
    return true;
  }));
}

TEST_CASE("statistics tell what a sandbox uses and may use", "[files]") {
  Host host;
  SandboxSpec spec;
  spec.limits.memory = 64 << 20;
  spec.limits.pids = 50;
  const auto sandbox = host.start(spec);
  host.run(sandbox,
           "dd if=/dev/zero of=/f bs=1M count=4 2>/dev/null; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
  const auto stats = host.runner().stats(sandbox);
  CHECK(stats.memory_limit == 64u << 20);
  CHECK(stats.memory_bytes > 0);
  CHECK(stats.pids >= 1);
  CHECK(stats.pids_limit == 50);
  CHECK(stats.cpu_usec > 1000);
  CHECK(stats.disk_bytes >= 4u << 20);
  CHECK(stats.oom_kills == 0u);
}
