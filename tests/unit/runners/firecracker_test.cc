#include "runners/vm/firecracker.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/child_process.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "runners/vm/unix_http.h"
#include "tests/support/error_message.h"

namespace dsec::runners {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Answers as Firecracker does, and judges each request by the rules of its API.
class Server {
 public:
  explicit Server(const std::string& fault = "")
      : place_("/tmp"),
        server_(ChildProcess::spawn({.argv = {"python3", DSEC_SOURCE_DIR "/tests/support/firecracker_server.py",
                                              socket().native(), log().native(), fault},
                                     .environment = {},
                                     .directory = "/",
                                     .descriptors = {}})) {}

  std::filesystem::path socket() const { return place_.path() / "api.sock"; }
  std::filesystem::path vsock() const { return place_.path() / "api.sock.vsock"; }
  std::filesystem::path file(const char* name) const { return place_.path() / name; }
  std::unique_ptr<FirecrackerControl> connect() const { return connect_firecracker(socket(), milliseconds(10'000)); }

  std::vector<Json> requests() const {
    std::istringstream lines(read_file(log()));
    std::vector<Json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(parse_json(line, "log"));
    return all;
  }
  // Of what was sent, all that the API would not take.
  std::vector<std::string> problems() const {
    std::vector<std::string> found;
    for (const Json& request : requests())
      if (!request["problem"].is_null()) found.push_back(request.dump());
    return found;
  }

 private:
  std::filesystem::path log() const { return place_.path() / "log"; }

  TempDirectory place_;
  ChildProcess server_;
};

MachineSpec machine() {
  MachineSpec spec;
  spec.kernel = "/vmlinux";
  spec.initramfs = "/initramfs";
  spec.command_line = "console=ttyS0 reboot=k panic=1 pci=off";
  spec.cpus = 2;
  spec.drives = {
      {.id = "layer0m", .file = "/layers/0m"},
      {.id = "disk", .file = "/disk.img", .read_only = false, .rate = {.bytes = 100 << 20, .operations = 500}}};
  spec.pmem = {{.id = "p0", .file = "/layers/0d"}};
  spec.channel = "/channel.sock";
  spec.control = "/api.sock";
  spec.console = "/console";
  return spec;
}

}  // namespace

TEST_CASE("every request to Firecracker keeps to its API", "[runners][firecracker]") {
  Server server;
  const auto control = server.connect();
  CHECK(control->state() == MachineState::NotStarted);
  CHECK(control->version() == "1.16.1");
  control->boot(machine());
  CHECK(control->state() == MachineState::Running);
  control->set_balloon(64 << 20);
  const GuestMemory memory = control->memory();
  CHECK(memory.balloon == 64 << 20);
  CHECK(memory.total == 500u << 20);
  CHECK(memory.caches == 50u << 20);
  control->limit_drive("disk", {.bytes = 1 << 20});
  control->flush_metrics();
  control->pause();
  CHECK(control->state() == MachineState::Paused);
  control->save({server.file("state"), server.file("memory")});
  control->save_difference({server.file("state2"), server.file("memory2")});
  control->resume();
  CHECK(control->state() == MachineState::Running);
  CHECK(server.problems() == std::vector<std::string>{});
  CHECK(read_file(server.file("memory2")) == "Diff");
}

TEST_CASE("what is booted is what the machine was to be", "[runners][firecracker]") {
  Server server;
  server.connect()->boot(machine());
  Json sent;
  for (const Json& request : server.requests())
    if (request["method"] == "PUT") sent[request["path"].get<std::string>()] = request["body"];
  CHECK(sent["/machine-config"] == Json{{"vcpu_count", 2}, {"mem_size_mib", 512}, {"smt", false}});
  CHECK(sent["/boot-source"]["initrd_path"] == "/initramfs");
  CHECK(sent["/drives/layer0m"]["is_read_only"] == true);
  CHECK(sent["/drives/layer0m"]["is_root_device"] == false);
  CHECK_FALSE(sent["/drives/layer0m"].contains("rate_limiter"));
  CHECK(sent["/drives/disk"]["rate_limiter"]["bandwidth"] == Json{{"size", 100 << 20}, {"refill_time", 1000}});
  CHECK(sent["/drives/disk"]["cache_type"] == "Writeback");
  CHECK(sent["/pmem/p0"]["read_only"] == true);
  CHECK(sent["/vsock"] == Json{{"guest_cid", 3}, {"uds_path", "/channel.sock"}});
  CHECK(sent["/balloon"]["free_page_reporting"] == true);
  CHECK(server.requests().back()["body"]["action_type"] == "InstanceStart");
}

TEST_CASE("a snapshot is loaded from a file, or page by page", "[runners][firecracker]") {
  Server server;
  write_file_atomic(server.file("state"), "x");
  const auto control = server.connect();
  SECTION("file") {
    control->load({server.file("state"), server.file("memory")});
    CHECK(control->state() == MachineState::Paused);
    CHECK(server.requests()[0]["body"]["mem_backend"]["backend_type"] == "File");
  }
  SECTION("page by page, with another channel") {
    control->load(
        {server.file("state"), server.file("pager.sock")},
        {.backend = MemoryBackend::Userfault, .track_writes = true, .resume = true, .channel = "/other.sock"});
    CHECK(control->state() == MachineState::Running);
    const Json body = server.requests()[0]["body"];
    CHECK(body["mem_backend"]["backend_type"] == "Uffd");
    CHECK(body["vsock_override"]["uds_path"] == "/other.sock");
    CHECK(body["track_dirty_pages"] == true);
  }
  CHECK(server.problems() == std::vector<std::string>{});
}

TEST_CASE("Firecracker's own words say why it refuses", "[runners][firecracker]") {
  Server server;
  const auto control = server.connect();
  CHECK(message_of([&] { control->pause(); }) ==
        "Firecracker refuses PATCH /vm: The requested operation is not supported before starting the microVM.");
  CHECK_THAT(message_of([&] {
               control->load({server.file("none"), server.file("none")});
             }),
             Catch::Contains("No such file"));
  control->boot(machine());
  CHECK_THAT(message_of([&] { control->save({server.file("a"), server.file("b")}); }), Catch::Contains("not paused"));
  CHECK_THAT(message_of([&] { control->limit_drive("other", {.bytes = 1}); }), Catch::Contains("Invalid block device"));
}

TEST_CASE("answers that fail end in time, with a reason", "[runners][firecracker]") {
  const std::vector<std::pair<const char*, const char*>> faults = {
      {"silent", "says nothing in time"}, {"garbage", "no answer to"},
      {"huge", "longer than any"},        {"endless", "longer than any"},
      {"hangup", "no answer to"},         {"refuse", "cannot be opened: No such"},
      {"wrong-json", "is no object"},     {"not-json", "answers with status 400"}};
  for (const auto& [fault, reason] : faults) {
    DYNAMIC_SECTION(fault) {
      Server server(fault);
      (void)server.connect();
      const auto begin = steady_clock::now();
      // As the control does it, with less patience.
      const std::string message = message_of([&, reason = fault] {
        if (reason == std::string("silent")) {
          (void)send_over_unix(server.socket(), "GET", "/", "", milliseconds(300));
        } else {
          (void)server.connect()->state();
        }
      });
      CHECK_THAT(message, Catch::Contains(reason));
      CHECK_THAT(message, !Catch::Contains("\n"));
      CHECK(steady_clock::now() - begin < milliseconds(10'000));
    }
  }
}

TEST_CASE("a slow answer is waited for", "[runners][firecracker]") {
  Server server("slow");
  CHECK(server.connect()->state() == MachineState::NotStarted);
}

TEST_CASE("a port of the guest is asked for by name before anything is said", "[runners][firecracker][vsock]") {
  Server server;
  (void)server.connect();
  const UniqueFd connection = connect_vsock(server.vsock(), 7702, milliseconds(5000));
  write_all(connection.get(), "ping");
  char answer[4];
  REQUIRE(::recv(connection.get(), answer, 4, MSG_WAITALL) == 4);
  CHECK(std::string(answer, 4) == "ping");
  CHECK_THAT(message_of([&] { connect_vsock(server.vsock(), 9, milliseconds(100)); }),
             Catch::Contains("nobody listens"));
  CHECK_THAT(message_of([&] { connect_vsock(server.vsock(), 7703, milliseconds(100)); }), Catch::Contains("no line"));
}

TEST_CASE("a jail has an id, a user and a root of its own", "[runners][firecracker]") {
  Jail jail{.jailer = "/usr/bin/jailer", .id = "abc", .uid = 20000, .gid = 20000, .cgroup_values = {"pids.max=64"}};
  const auto argv = make_firecracker("/usr/bin/firecracker", jail)->command(machine());
  CHECK(argv == std::vector<std::string>{"/usr/bin/jailer", "--id", "abc", "--exec-file", "/usr/bin/firecracker",
                                         "--uid", "20000", "--gid", "20000", "--chroot-base-dir", "/srv/jailer",
                                         "--new-pid-ns", "--cgroup-version", "2", "--cgroup", "pids.max=64", "--",
                                         "--api-sock", "/api.sock"});
  CHECK(root_of_jail(jail, "/usr/bin/firecracker") == "/srv/jailer/firecracker/abc/root");
  jail.id = "a_b";
  CHECK_THROWS_WITH(make_firecracker("/f", jail)->command(machine()), Catch::Contains("no name for a jail"));
  jail.id = "a";
  jail.uid = 0;
  CHECK_THROWS_WITH(make_firecracker("/f", jail)->command(machine()), Catch::Contains("not to run as root"));
}

}  // namespace dsec::runners
