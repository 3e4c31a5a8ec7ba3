#include "core/engine/trajectory.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "core/base/json_bytes.h"
#include "core/engine/recording.h"

namespace dsec::engine {
namespace {
namespace fs = std::filesystem;
using std::chrono::microseconds;
using std::chrono::system_clock;

const std::string kId = "abcdef2345672345672345";

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  Home home = Home::open(scratch.path() / "home");
  fs::path place = home.trajectories() / kId;
  fs::path log = place / kTrajectoryLog;

  static TrajectoryHeader header() {
    TrajectoryHeader header;
    header.id = kId;
    header.environment = "toolz-1";
    header.layers = {{Digest::of("base"), "base/python:3.11"}};
    header.spec.layers = {Digest::of("base")};
    header.created = system_clock::time_point(microseconds(1'700'000'000'123'456));
    header.dsec = "0.1.0";
    return header;
  }

  static Operation command(const std::string& op_id, std::vector<std::string> argv) {
    Operation operation;
    operation.op_id = op_id;
    operation.kind = "exec";
    operation.origin = Origin::Cli;
    operation.exec_id = "1";
    operation.started = system_clock::time_point(microseconds(1'700'000'001'000'001));
    ExecSpec spec;
    spec.argv = std::move(argv);
    operation.request = canonical_json(exec_request(spec));
    return operation;
  }

  static Operation::Done ended(const std::string& out) {
    Operation::Done done;
    done.time = system_clock::time_point(microseconds(1'700'000'001'000'101));
    done.duration = microseconds(100);
    ExecResult result;
    result.stdout_bytes = out.size();
    done.result = canonical_json(exec_result_json(result));
    done.stdout_data = out;
    return done;
  }

  Operation write(TrajectoryWriter& writer, Operation operation, const std::string& out) {
    operation.seq = writer.started(operation);
    if (operation.op_id.empty()) operation.op_id = "#" + std::to_string(operation.seq);
    operation.done = ended(out);
    writer.done(operation);
    return operation;
  }

  /// Two commands, and the text of the log.
  std::string two_commands() {
    TrajectoryWriter::create(place, header());
    TrajectoryWriter writer(place);
    write(writer, command("a", {"true"}), "one");
    write(writer, command("", {"echo", "\xff"}), "tw\xffo");
    return read_file(log);
  }

  void replace_log(const std::string& text) { write_file_atomic(log, text, 0600); }
};

TEST_CASE("the checksum is that of the standard", "[engine][trajectory]") {
  CHECK(crc32c(0, "123456789", 9) == 0xe3069283u);
  CHECK(crc32c(crc32c(0, "1234", 4), "56789", 5) == 0xe3069283u);
}

TEST_CASE("any bytes go into JSON and back", "[engine][trajectory]") {
  for (const std::string& bytes : {std::string(), std::string("text"), std::string("\xff"), std::string("a\xff\x00", 3),
                                   std::string("\xed\xa0\x80"), std::string("\xc0\xaf") + std::string(5, '\x80')})
    CHECK(bytes_of_json(parse_json(canonical_json(json_bytes(bytes)), "test")) == bytes);
  CHECK(json_bytes("a\xff").dump() == R"({"base64":"Yf8="})");
  CHECK_THROWS_AS(from_base64("abc"), Error);
  CHECK_THROWS_AS(from_base64("ab*="), Error);
}

TEST_CASE_METHOD(Fixture, "what is written is read", "[engine][trajectory]") {
  TrajectoryWriter::create(place, header());
  std::vector<Operation> written;
  {
    TrajectoryWriter writer(place);
    written.push_back(write(writer, command("build-1", {"make", "all"}), "ok\n"));
    Operation plain = write(writer, command("", {"printf", "\xff\x01"}), "\xfe");
    CHECK(plain.op_id == "#2");
    written.push_back(plain);
    writer.sync();
  }
  {
    TrajectoryWriter writer(place);
    CHECK(writer.next_seq() == 3);
    Operation open = command("", {"sleep", "1"});
    open.seq = writer.started(open);
    open.op_id = "#3";
    written.push_back(open);
  }
  const Trajectory read = Trajectory::read(place);
  CHECK(read.header == header());
  CHECK(read.operations == written);
  CHECK(read.damage.empty());
  CHECK(read.output(read.operations[1], 0) == "\xfe");
  CHECK(exec_spec_of(read.operations[1]).argv == std::vector<std::string>{"printf", "\xff\x01"});
  CHECK(exec_result_of(read.operations[0]).cause == ExecResult::Cause::Exited);
  CHECK(exec_result_of(read.operations[2]).cause == ExecResult::Cause::Unknown);
  CHECK(exec_result_of(read.operations[2]).shell_code() == 125);
}

TEST_CASE_METHOD(Fixture, "a line that was being written is ignored wherever it ends", "[engine][trajectory]") {
  const std::string whole = two_commands();
  const std::size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (std::size_t end = last; end < whole.size(); end += 7) {
    replace_log(whole.substr(0, end));
    const Trajectory read = Trajectory::read(place);
    CHECK(read.damage.empty());
    REQUIRE(read.operations.size() == 2);
    CHECK(read.operations[0].done);
    CHECK_FALSE(read.operations[1].done);
  }
  // What a power cut can leave instead.
  replace_log(whole.substr(0, last) + std::string(100, '\0'));
  CHECK(Trajectory::read(place).damage.empty());
}

TEST_CASE_METHOD(Fixture, "the next writer takes away a line that was never finished", "[engine][trajectory]") {
  const std::string whole = two_commands();
  replace_log(whole.substr(0, whole.size() - 9));
  TrajectoryWriter writer(place);
  CHECK(writer.next_seq() == 3);
  write(writer, command("c", {"false"}), "");
  const Trajectory read = Trajectory::read(place);
  CHECK(read.damage.empty());
  REQUIRE(read.operations.size() == 3);
  CHECK_FALSE(read.operations[1].done);
  CHECK(read.operations[2].op_id == "c");
}

TEST_CASE_METHOD(Fixture, "damage is told with its line, and what comes before stays", "[engine][trajectory]") {
  const std::string whole = two_commands();
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < whole.size(); at = whole.find('\n', at) + 1)
    lines.push_back(whole.substr(at, whole.find('\n', at) + 1 - at));
  REQUIRE(lines.size() == 5);
  SECTION("a changed byte") { lines[2][20] ^= 1; }
  SECTION("a missing line") { lines.erase(lines.begin() + 2); }
  SECTION("exchanged lines") { std::swap(lines[2], lines[3]); }
  SECTION("a doubled line") { lines.insert(lines.begin() + 2, lines[1]); }
  std::string text;
  for (const std::string& line : lines) text += line;
  replace_log(text);
  const Trajectory read = Trajectory::read(place);
  CHECK(read.damage.find("line 3 of") != std::string::npos);
  REQUIRE(read.operations.size() == 1);
  CHECK_FALSE(read.operations[0].done);
  CHECK_THROWS_AS(TrajectoryWriter(place), Error);
  // It could be in what cannot be read.
  CHECK_THROWS_AS(find_operation(place, "zzz"), Error);
}

TEST_CASE_METHOD(Fixture, "a newer schema and files outside are refused", "[engine][trajectory]") {
  Json newer = parse_json(to_line(header()), "test");
  newer["schema"] = 2;
  CHECK_THROWS_WITH(trajectory_header_from(newer), Catch::Contains("header of the trajectory"));
  for (const char* name : {"../x", "/etc/passwd", ".hidden", ""}) {
    const Json done = {{"time_us", 1},
                       {"duration_us", 1},
                       {"outcome", "ok"},
                       {"result", {{}}},
                       {"files", {{"output", {{{"name", name}, {"bytes", 1}}}}}}};
    CHECK_THROWS_AS(done_from(done), Error);
  }
}

TEST_CASE_METHOD(Fixture, "an operation is found by its name alone", "[engine][trajectory]") {
  TrajectoryWriter::create(place, header());
  TrajectoryWriter writer(place);
  // Looks like another's name.
  write(writer, command("a", {"echo", "\"op_id\":\"b\""}), "\"op_id\":\"b\"");
  CHECK_FALSE(find_operation(place, "b"));
  write(writer, command("b", {"true"}), "second");
  REQUIRE(find_operation(place, "b"));
  CHECK(find_operation(place, "b")->done->stdout_data == "second");
  CHECK_FALSE(find_operation(place, ""));
}

class EndedRunner final : public Runner {
 public:
  void check(SandboxSpec&) override {}
  RunnerStatus start(RunnerRequest) override { return {}; }
  RunnerStatus status(const fs::path&) override { return {}; }
  std::unique_ptr<ExecStream> exec(const fs::path&, const ExecSpec&) override { return nullptr; }
  std::unique_ptr<OpenOperation> begin(const fs::path&, const OperationRequest&) override { return nullptr; }
  std::unique_ptr<ExecStream> attach(const fs::path&, const std::string&, const AttachFrom&) override {
    return nullptr;
  }
  void signal(const fs::path&, const std::string&, int) override {}
  SessionInfo open_session(const fs::path&, const SessionSpec&) override { return {}; }
  std::unique_ptr<ExecStream> run_in_session(const fs::path&, const std::string&, const SessionCommand&) override {
    return nullptr;
  }
  std::vector<SessionInfo> sessions(const fs::path&) override { return {}; }
  void close_session(const fs::path&, const std::string&) override {}
  UniqueFd connect(const fs::path&, std::uint16_t) override { return {}; }
  std::unique_ptr<FileWatch> watch(const fs::path&, const std::string&, bool) override { return nullptr; }
  void pause(const fs::path&) override {}
  void resume(const fs::path&) override {}
  void update(const fs::path&, const SandboxSpec&, SandboxSpec&) override {}
  std::unique_ptr<Stillness> hold_still(const fs::path&) override { return nullptr; }
  NetworkReport network(const fs::path&) override { return {}; }
  void set_network(const fs::path&, const NetworkPlan&) override {}
  std::string network_log(const fs::path&, std::uint64_t) override { return ""; }
  std::vector<ExecInfo> commands(const fs::path&) override { return {}; }
  bool wait(const fs::path&, std::optional<std::chrono::milliseconds>) override { return true; }
  void stop(const fs::path&, std::chrono::milliseconds) override {}
  void reclaim(const fs::path&) override {}
  void logs(const fs::path&, const LogOptions&, const LogSink&) override {}
  SandboxStats stats(const fs::path&) override { return {}; }
  std::vector<Change> diff(const fs::path&, const OpenLayers&) override { return {}; }
  UniqueFd open_writable_layer(const fs::path&) override { return {}; }
  void copy_out(const fs::path&, const OpenLayers&, const std::string&, int) override {}
  void copy_in(const fs::path&, const OpenLayers&, const std::string&, int) override {}
};

struct Recording : Fixture {
  EndedRunner runner;
  RecordingPlace where{&runner, home.sandboxes() / kId, place};
  int ran = 0;

  Recording() { TrajectoryWriter::create(place, header()); }
  Operation record(const std::string& op_id, const std::string& path) {
    return record_operation(where, {"write", canonical_json({{"path", path}}), {op_id}},
                            [&](std::uint64_t, Operation::Done& done) {
                              ++ran;
                              if (path == "/bad")
                                throw usage_error("no such place").context("cannot copy").hint("mkdir");
                              done.result = R"({"bytes":7})";
                            });
  }
};

TEST_CASE_METHOD(Recording, "a repeated op-id runs nothing and gives what is recorded", "[engine][trajectory]") {
  CHECK(record("a", "/x").done->result == R"({"bytes":7})");
  CHECK(record("a", "/x").done->result == R"({"bytes":7})");
  CHECK(ran == 1);
  record("", "/x");
  record("", "/x");
  CHECK(ran == 3);
}

TEST_CASE_METHOD(Recording, "an op-id that comes with another request is refused with the difference",
                 "[engine][trajectory]") {
  record("a", "/x");
  CHECK_THROWS_WITH(record("a", "/y"), Catch::Contains("operation 'a' was another request"));
  try {
    record("a", "/y");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK(error.message() == R"(operation 'a' was another request: path was "/x", is "/y")");
  }
  CHECK(ran == 1);
  CHECK_THROWS_AS(record("not allowed", "/x"), Error);
}

TEST_CASE_METHOD(Recording, "a recorded failure comes again as it was", "[engine][trajectory]") {
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      record("a", "/bad");
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      CHECK(error.message() == "cannot copy: no such place");
      REQUIRE(error.hints().size() == 1);
      CHECK(error.hints()[0] == "mkdir");
    }
  }
  CHECK(ran == 1);
}

TEST_CASE_METHOD(Recording, "an operation whose end is not recorded is never run again", "[engine][trajectory]") {
  {
    TrajectoryWriter writer(place);
    Operation open;
    open.op_id = "a";
    open.kind = "write";
    open.request = R"({"path":"/x"})";
    writer.started(open);
  }
  CHECK_THROWS_WITH(record("a", "/x"), Catch::Contains("the outcome of operation 'a' is unknown"));
  CHECK(ran == 0);
}

TEST_CASE_METHOD(Fixture, "what a maker left before the first line is empty, and no problem", "[engine][trajectory]") {
  fs::create_directories(place);
  std::vector<std::string> problems;
  const auto found = list_trajectories(home, problems);
  CHECK(problems.empty());
  REQUIRE(found.size() == 1);
  CHECK(found[0].operations == 0);
  CHECK(expired_trajectories(found, {}, {}).size() == 1);
  fs::create_directories(home.sandboxes() / kId);
  CHECK(expired_trajectories(list_trajectories(home, problems), {}, {}).empty());
}

TEST_CASE("the oldest trajectories go first, and live ones never", "[engine][trajectory]") {
  const auto now = system_clock::time_point(std::chrono::hours(1000));
  const auto info = [&](const std::string& id, int hours_ago, std::uint64_t bytes, bool live) {
    TrajectoryInfo made;
    made.id = id;
    made.last = now - std::chrono::hours(hours_ago);
    made.bytes = bytes;
    made.live = live;
    made.operations = 1;
    return made;
  };
  const std::vector<TrajectoryInfo> all = {info("new", 1, 10, false), info("old", 50, 10, false),
                                           info("older", 60, 10, false), info("live", 70, 10, true)};
  const auto names = [&](const TrajectoryLimits& limits) {
    std::string text;
    for (const TrajectoryInfo& gone : expired_trajectories(all, limits, now)) text += gone.id + " ";
    return text;
  };
  CHECK(names({.age = std::chrono::hours(100), .bytes = 100}) == "");
  CHECK(names({.age = std::chrono::hours(55), .bytes = 100}) == "older ");
  CHECK(names({.age = std::chrono::hours(100), .bytes = 25}) == "older old ");
  CHECK(names({.age = std::chrono::hours(0), .bytes = 0}) == "older old new ");
}

}  // namespace
}  // namespace dsec::engine
