#include "core/remote/edge/edge.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <list>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/http_exchange.h"
#include "core/remote/address.h"

namespace dsec::remote {
namespace {
using namespace engine;
using namespace std::chrono_literals;
using std::chrono::milliseconds;

/// Has one sandbox, whose keeper is a process of the test, and which takes its time to end.
class OneSandbox final : public Engine {
 public:
  explicit OneSandbox(pid_t keeper) : keeper_(keeper) {}
  std::atomic<int> made = 0, removed = 0;

  SandboxInfo inspect(const std::string&) override {
    SandboxInfo info;
    info.id = "aaaaaaaaaaaaaaaaaaaaaa";
    info.state = SandboxState::Running;
    info.keeper_pid = keeper_;
    return info;
  }
  SandboxInfo wait(const std::string& id, std::optional<milliseconds>) override {
    std::this_thread::sleep_for(1s);
    SandboxInfo info = inspect(id);
    info.state = SandboxState::Stopped;
    info.keeper_pid = 0;
    return info;
  }
  SandboxStats stats(const std::string&) override {
    std::this_thread::sleep_for(2s);
    return {};
  }

  SandboxInfo create(const SandboxSpec& spec) override {
    ++made;
    std::this_thread::sleep_for(1s);
    SandboxInfo info = inspect("");
    info.spec = spec;
    return info;
  }
  MadeSandbox create_once(const SandboxSpec&, const std::string&) override { throw none(); }
  std::unique_ptr<ExecStream> exec(const std::string&, const ExecSpec&) override { throw none(); }
  std::unique_ptr<ExecStream> attach(const std::string&, const std::string&, const AttachFrom&) override {
    throw none();
  }
  std::vector<ExecInfo> commands(const std::string&) override { throw none(); }
  void signal(const std::string&, const std::string&, int, const OperationContext&) override { throw none(); }
  SessionInfo open_session(const std::string&, const SessionSpec&) override { throw none(); }
  std::unique_ptr<ExecStream> run_in_session(const std::string&, const std::string&, const SessionCommand&) override {
    throw none();
  }
  std::vector<SessionInfo> sessions(const std::string&) override { throw none(); }
  void close_session(const std::string&, const std::string&, const OperationContext&) override { throw none(); }
  UniqueFd connect(const std::string&, std::uint16_t) override { throw none(); }
  void http(const std::string&, std::uint16_t, const HttpRequest&, const HttpSink&) override { throw none(); }
  std::unique_ptr<FileWatch> watch(const std::string&, const std::string&, bool) override { throw none(); }
  std::string screenshot(const std::string&, const OperationContext&) override { throw none(); }
  void screen_input(const std::string&, const ScreenInput&, const OperationContext&) override { throw none(); }
  UniqueFd connect_screen(const std::string&) override { throw none(); }
  std::vector<SandboxInfo> list(const ListFilter&) override { throw none(); }
  void stop(const std::string&, milliseconds, const OperationContext&) override {}
  void remove(const std::string&, bool) override { ++removed; }
  void pause(const std::string&, const OperationContext&) override { throw none(); }
  void resume(const std::string&, const OperationContext&) override { throw none(); }
  SandboxInfo update(const std::string&, const UpdateRequest&) override { throw none(); }
  Snapshot snapshot(const std::string&, const SnapshotRequest&) override { throw none(); }
  std::vector<SandboxInfo> fork(const std::string&, const ForkRequest&) override { throw none(); }
  void logs(const std::string&, const LogOptions&, const LogSink&) override { throw none(); }
  std::vector<Change> diff(const std::string&) override { throw none(); }
  std::vector<FileChange> diff_stat(const std::string&) override { throw none(); }
  void diff_content(const std::string&, DiffForm, int) override { throw none(); }
  void copy_out(const std::string&, const std::string&, int, const OperationContext&) override { throw none(); }
  void copy_in(const std::string&, const std::string&, int, const OperationContext&) override { throw none(); }
  std::vector<TrajectoryInfo> trajectories(std::vector<std::string>&) override { throw none(); }
  Trajectory trajectory(const std::string&) override { throw none(); }
  std::optional<Operation> recorded(const std::string&, const std::string&) override { throw none(); }
  void remove_trajectory(const std::string&) override { throw none(); }
  NetworkReport network(const std::string&) override { throw none(); }
  NetworkPlan set_network(const std::string&, const NetworkChange&, const OperationContext&) override { throw none(); }
  std::string network_log(const std::string&, std::uint64_t) override { throw none(); }
  StoredLayer layer(const LayerRef&) override { throw none(); }

 private:
  static Error none() { return failure("there is none"); }
  const pid_t keeper_;
};

/// Of a connection that stays, as clients have it that are not ours.
class Client {
 public:
  explicit Client(const std::string& url) : socket_(Address::parse(url).connect()) {
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  void ask(const std::string& request, const std::string& body = "") {
    write_all(socket_.get(),
              request + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  /// Status and body of the next answer; of one to HEAD without a body.
  std::pair<int, std::string> answer(const std::string& method = "GET") {
    std::string head;
    while (!head.ends_with("\r\n\r\n")) head += take(1);
    HttpAnswer read(-1, head);
    const HttpResponse response = read.head("HEAD");
    return {response.status, method == "HEAD" ? "" : take(std::stoul(response.header("Content-Length")))};
  }

 private:
  std::string take(std::size_t size) {
    std::string bytes(size, '\0');
    REQUIRE(::recv(socket_.get(), bytes.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size));
    return bytes;
  }
  const UniqueFd socket_;
};

struct Served {
  Served()
      : edge(engine, listen_for_clients("unix:" + (place.path() / "edge.sock").native(), url),
             {.name = "lab", .token = {}, .limits = {}, .log = {}}) {}

  TempDirectory place{std::filesystem::temp_directory_path()};
  ChildProcess keeper = ChildProcess::spawn({.argv = {"sleep", "1000"}, .environment = {}, .directory = {}});
  OneSandbox engine{keeper.pid()};
  std::string url;
  Edge edge;
};

TEST_CASE("an end that comes with the end of patience is one answer, and the next request has its own", "[remote]") {
  Served served;
  Client client(served.url);
  client.ask("GET /v1/sandboxes/one/end?timeout_ms=500");
  std::this_thread::sleep_for(200ms);
  served.keeper.signal(SIGKILL);
  client.ask("GET /v1/sandboxes/one/stats");
  const auto [ended, sandbox] = client.answer();
  CHECK(ended == 200);
  CHECK(parse_json(sandbox, "answer")["state"] == "stopped");
  const auto [status, stats] = client.answer();
  CHECK(status == 200);
  CHECK(parse_json(stats, "answer").contains("memory_bytes"));
}

TEST_CASE("of a client that has gone before its command's sandbox was there none is left", "[remote]") {
  Served served;
  const auto make = [&](bool for_command) {
    SandboxSpec spec;
    spec.layers = {Digest::of("layer")};
    spec.made_for_command = for_command;
    Client client(served.url);
    client.ask("POST /v1/sandboxes", canonical_json({{"spec", dsec::to_json(spec)}}));
    std::this_thread::sleep_for(300ms);
  };
  const auto comes_to = [](const std::atomic<int>& count, int wanted) {
    for (int i = 0; i < 500 && count < wanted; ++i) std::this_thread::sleep_for(10ms);
    return count == wanted;
  };
  make(true);
  CHECK(comes_to(served.engine.made, 1));
  CHECK(comes_to(served.engine.removed, 1));
  // What others may find stays: a client that ends does not end what it began.
  make(false);
  CHECK(comes_to(served.engine.made, 2));
  std::this_thread::sleep_for(1500ms);
  CHECK(served.engine.removed == 1);
}

TEST_CASE("sandboxes that are long in coming keep none from being stopped", "[remote]") {
  Served served;
  SandboxSpec spec;
  spec.layers = {Digest::of("layer")};
  const std::string body = canonical_json({{"spec", dsec::to_json(spec)}});
  std::list<Client> makers;
  for (int i = 0; i < 100; ++i) makers.emplace_back(served.url).ask("POST /v1/sandboxes", body);
  for (int i = 0; i < 500 && served.engine.made < 16; ++i) std::this_thread::sleep_for(10ms);
  Client client(served.url);
  const auto began = std::chrono::steady_clock::now();
  client.ask("POST /v1/sandboxes/one/stop", R"({"grace_ms": 0})");
  CHECK(client.answer().first == 200);
  CHECK(std::chrono::steady_clock::now() - began < 2s);
}

TEST_CASE("an answer to HEAD has no body, and the next one is where it should be", "[remote]") {
  Served served;
  Client client(served.url);
  client.ask("HEAD /v1/health");
  client.ask("GET /v1/health");
  CHECK(client.answer("HEAD").first == 405);
  CHECK(client.answer().second.find("\"ok\"") != std::string::npos);
}

}  // namespace
}  // namespace dsec::remote
