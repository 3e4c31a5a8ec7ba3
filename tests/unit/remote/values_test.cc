#include "core/remote/values.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "core/remote/address.h"

namespace dsec::remote {
namespace {
using std::chrono::milliseconds;

const std::string kBytes("\xff\x00 text", 7);

template <typename Value>
Json sent(const Value& value) {
  return parse_json(to_wire(value).dump(), "wire");
}

TEST_CASE("commands cross the wire with every byte and setting", "[remote]") {
  ExecSpec spec;
  spec.argv = {"sh", kBytes};
  spec.env = {"A=" + std::string("\xfe")};
  spec.workdir = "/w";
  spec.user = "me:us";
  spec.tty = spec.open_stdin = spec.main = spec.detach = true;
  spec.rows = 1, spec.columns = 65535;
  spec.timeout = milliseconds(5);
  spec.output_limit = 7;
  CHECK(exec_spec_from_wire(sent(spec)) == spec);
  SessionCommand command{.text = "echo " + std::string("\xfe"),
                         .open_stdin = true,
                         .detach = true,
                         .rows = 3,
                         .columns = 4,
                         .operation = {}};
  command.timeout = milliseconds(9);
  const SessionCommand back = session_command_from_wire(sent(command));
  CHECK((back.text == command.text && back.open_stdin && back.detach && back.rows == 3 && back.columns == 4));
  CHECK(back.timeout == command.timeout);
}

TEST_CASE("what a machine uses crosses the wire, with what its VMM has of the host's memory", "[remote]") {
  engine::SandboxStats stats;
  stats.memory_bytes = 1;
  CHECK_FALSE(stats_from_wire(sent(stats)).host_memory);
  stats.host_memory = {.own = 2, .shared = 3, .part_of_shared = 4};
  const engine::SandboxStats back = stats_from_wire(sent(stats));
  REQUIRE(back.host_memory);
  CHECK((back.memory_bytes == 1 && back.host_memory->own == 2 && back.host_memory->shared == 3 &&
         back.host_memory->part_of_shared == 4));
}

TEST_CASE("updates cross the wire, also what no record has", "[remote]") {
  engine::UpdateRequest request;
  request.cpus = 1.5;
  request.memory = 0;
  request.cpu_class = CpuClass::Batch;
  request.lifetime = milliseconds(0);
  request.idle_pause = milliseconds(1000);
  request.labels = {{"a", "1"}, {"b", std::nullopt}};
  const engine::UpdateRequest back = update_from_wire(sent(request));
  CHECK(back.cpus == request.cpus);
  CHECK(back.memory == request.memory);
  CHECK_FALSE(back.pids);
  CHECK(back.cpu_class == request.cpu_class);
  CHECK(back.lifetime == request.lifetime);
  CHECK_FALSE(back.idle);
  CHECK(back.idle_pause == request.idle_pause);
  CHECK(back.labels == request.labels);
}

TEST_CASE("changes of a network cross the wire", "[remote]") {
  NetworkChange change;
  change.phase = "agent";
  change.rules.emplace();
  change.rules->allow.push_back(NetworkRule::parse("example.org:8443"));
  change.strict = true;
  const NetworkChange back = network_change_from_wire(to_json(change));
  CHECK(back.phase == change.phase);
  REQUIRE(back.rules);
  CHECK(back.rules->allow == change.rules->allow);
  CHECK(back.rules->deny.empty());
  CHECK(back.strict == change.strict);
  CHECK_FALSE(back.plan);
  CHECK_FALSE(back.inject);
}

TEST_CASE("events, changes and answers cross the wire", "[remote]") {
  const engine::FileEvent event{engine::FileEvent::Kind::Moved, "/b" + kBytes, "/a", true};
  const engine::FileEvent moved = file_event_from_wire(sent(event));
  CHECK((moved.kind == event.kind && moved.path == event.path && moved.from == event.from && moved.directory));
  const engine::FileChange change{{engine::Change::Kind::Deleted, kBytes}, true, 1, 2, 3, 4};
  const engine::FileChange back = file_change_from_wire(sent(change));
  CHECK((back.change.kind == change.change.kind && back.change.path == kBytes && back.binary && back.bytes_after == 4));
  const engine::HttpResponse response{200, "OK", {{"X", kBytes}}};
  CHECK(http_response_from_wire(sent(response)).headers == response.headers);
}

TEST_CASE("what means nothing is an error that says so", "[remote]") {
  for (const char* text : {R"({"argv": [7]})", R"({"argv": ["x"], "rows": 70000})", R"({"argv": ["x"], "detach": 1})"})
    CHECK_THROWS_AS(exec_spec_from_wire(parse_json(text, "wire")), Error);
  CHECK_THROWS_AS(sandbox_from_wire(parse_json("{}", "wire")), Error);
  CHECK_THROWS_AS(update_from_wire(parse_json(R"({"labels": {"a": 7}})", "wire")), Error);
  CHECK_THROWS_AS(layer_from_wire(parse_json("{}", "wire")), Error);
}

TEST_CASE("addresses are sockets and the loopback", "[remote]") {
  CHECK(Address::parse("unix:/run/x.sock").str() == "unix:/run/x.sock");
  CHECK(Address::parse("http://127.0.0.1").str() == "http://127.0.0.1:7701");
  CHECK(Address::parse("http://127.0.0.1:80/").str() == "http://127.0.0.1:80");
  CHECK(Address::parse("http://[::1]:9").str() == "http://[::1]:9");
  CHECK(Address::parse("http://localhost").host == "localhost");
  for (const char* url : {"", "x", "unix:x", "unix:", "http://", "http://127.0.0.1:0", "http://127.0.0.1:x",
                          "http://127.0.0.1:99999", "http://127.0.0.1/path", "http://user@127.0.0.1",
                          "http://example.org", "http://10.0.0.1:7701", "https://127.0.0.1"})
    CHECK_THROWS_AS(Address::parse(url), Error);
  CHECK_THROWS_WITH(Address::parse("http://10.0.0.1"), Catch::Contains("needs TLS"));
  CHECK_THROWS_AS(Address::parse("unix:/" + std::string(200, 'x')), Error);
}

}  // namespace
}  // namespace dsec::remote
