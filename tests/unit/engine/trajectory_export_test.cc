#include "core/engine/trajectory_export.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_bytes.h"
#include "core/base/sealed_lines.h"
#include "core/base/spool_record.h"
#include "core/engine/masked_output.h"
#include "core/engine/network_log.h"
#include "core/engine/tar_entries.h"
#include "core/engine/trajectory_builder.h"
#include "core/engine/trajectory_import.h"

namespace dsec::engine {
namespace {
namespace fs = std::filesystem;
using std::chrono::microseconds;
using std::chrono::system_clock;

const std::string kSecret = "s3cr3t/VALUE-42";
const auto kTime = system_clock::time_point(microseconds(1'700'000'001'000'001));

std::string record(unsigned stream, const std::string& data, std::uint64_t time = 1) {
  const SpoolRecord head{time, static_cast<std::uint32_t>(data.size()), stream};
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + data;
}

std::string tar_block(const std::string& name, const std::string& prefix, char type, std::size_t size) {
  std::string block(TarHeader::kSize, '\0');
  block.replace(0, name.size(), name);
  block.replace(100, 7, "0000644");
  char digits[12];
  ::snprintf(digits, sizeof digits, "%011zo", size);
  block.replace(124, 11, digits);
  block[156] = type;
  block.replace(257, 8, std::string("ustar\00000", 8));
  block.replace(345, prefix.size(), prefix);
  set_tar_checksum(block);
  return block;
}

std::string tar_entry(const std::string& name, const std::string& content, char type = '0',
                      const std::string& prefix = "") {
  std::string entry = tar_block(name, prefix, type, content.size()) + content;
  entry.resize((entry.size() + 511) / 512 * 512);
  return entry;
}

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  Home home = Home::open(scratch.path() / "home");
  fs::path file = scratch.path() / "export.jsonl";

  static TrajectoryHeader header() {
    TrajectoryHeader header;
    header.id = "abcdef2345672345672345";
    header.layers = {{Digest::of("base"), "base/python:3.11"}};
    header.spec.layers = {Digest::of("base")};
    header.spec.config.env = {"API_TOKEN=" + kSecret, "PLAIN=visible"};
    header.created = kTime;
    header.dsec = "0.1.0";
    return header;
  }

  static Operation operation(const std::string& kind, const Json& request) {
    Operation operation;
    operation.kind = kind;
    operation.origin = Origin::Cli;
    operation.started = kTime;
    operation.request = canonical_json(request);
    operation.done = Operation::Done{};
    operation.done->time = kTime;
    if (kind == "exec") operation.done->result = canonical_json(exec_result_json({}));
    return operation;
  }
  static Operation command(std::vector<std::string> argv) {
    ExecSpec spec;
    spec.argv = std::move(argv);
    return operation("exec", exec_request(spec));
  }

  /// Puts the files of the last operation beside it and ends it.
  static void finish(TrajectoryBuilder& builder, Operation operation,
                     const std::vector<std::pair<std::string, std::string>>& files = {}) {
    builder.started(operation);
    operation.seq = builder.operations();
    operation.op_id = "#" + std::to_string(operation.seq);
    for (const auto& [suffix, data] : files) {
      const std::string name = std::to_string(operation.seq) + "." + suffix;
      builder.append_file(name, data);
      if (suffix == "stdin")
        operation.done->stdin_file = Operation::Part{name, data.size()};
      else if (suffix == "tar")
        operation.done->content = Operation::Content{name, data.size(), Digest::of(data).hex()};
      else
        operation.done->output.push_back({name, data.size()});
    }
    builder.done(operation);
  }

  /// All that is there, unfinished ones too.
  std::ptrdiff_t entries() const { return std::distance(fs::directory_iterator(home.trajectories()), {}); }

  Trajectory published(TrajectoryBuilder& builder) const {
    builder.publish();
    return Trajectory::read(home.trajectories() / builder.id());
  }

  std::string exported(const Trajectory& trajectory) const {
    SecretMask mask;
    mask.learn(trajectory);
    const UniqueFd out = open_file(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    export_trajectory(trajectory, mask, out.get());
    return read_file(file);
  }

  /// What all its operations say together, and every file, byte by byte.
  static std::string everything(const Trajectory& trajectory) {
    std::string all;
    for (const Operation& one : trajectory.operations) {
      all += one.request + one.done->result + trajectory.output(one, 0) + "|" + trajectory.output(one, 1) +
             trajectory.input(one);
      if (const UniqueFd content = trajectory.content(one)) all += read_all(content.get());
    }
    if (const UniqueFd network = trajectory.beside_if_there(kNetworkLog)) all += read_all(network.get());
    return all;
  }
};

// Every piece of the secret that is long enough to be no coincidence.
bool shows(const std::string& text, std::size_t shortest = 5) {
  for (std::size_t at = 0; at + shortest <= kSecret.size(); ++at)
    if (text.find(kSecret.substr(at, shortest)) != std::string::npos) return true;
  return false;
}

TEST_CASE("a secret that comes in two pieces is found wherever it is cut", "[engine][secrets]") {
  SecretMask mask;
  mask.learn(std::vector<std::string>{"A_TOKEN=" + kSecret, "B_TOKEN=VALUE-42+more"});
  for (std::size_t cut = 0; cut <= kSecret.size(); ++cut) {
    SecretScan scan(mask);
    scan.push("before " + kSecret.substr(0, cut));
    scan.push(kSecret.substr(cut) + " after");
    CHECK(scan.finish() == std::vector<SecretScan::Place>{{7, 7 + kSecret.size()}});
  }
  SecretScan bytes(mask);
  for (const char c : "xx" + kSecret + kSecret) bytes.push({&c, 1});
  CHECK(bytes.finish() ==
        std::vector<SecretScan::Place>{{2, 2 + kSecret.size()}, {2 + kSecret.size(), 2 + 2 * kSecret.size()}});
}

TEST_CASE("where secrets overlap nothing of either is left", "[engine][secrets]") {
  SecretMask mask;
  mask.learn(std::vector<std::string>{"A_TOKEN=abcdefgh", "B_TOKEN=efghijkl"});
  CHECK(mask.text("-abcdefghijkl-") == "-********-");
  CHECK(mask.with(SecretMask::Form::SameLength).text("-abcdefghijkl-") == "-XXXXXXXXXXXX-");
}

TEST_CASE("what a gap leaves of a secret is masked", "[engine][secrets]") {
  SecretMask mask;
  mask.learn(std::vector<std::string>{"A_TOKEN=" + kSecret});
  for (std::size_t left = 1; left < kSecret.size(); ++left) {
    SecretScan scan(mask);
    std::string before = "before " + kSecret.substr(0, left), after = kSecret.substr(left) + " after";
    scan.push(before);
    scan.gap();
    for (const char c : after) scan.push({&c, 1});
    const auto places = scan.finish();
    blank(before, 0, places);
    blank(after, 7 + left, places);
    CHECK(before == "before " + std::string(left, 'X'));
    CHECK(after == std::string(kSecret.size() - left, 'X') + " after");
  }
}

TEST_CASE("secrets are learnt of what commands set, too", "[engine][secrets]") {
  Trajectory trajectory;
  trajectory.operations = {
      Fixture::command({"sh", "-c", "export DB_PASSWORD='one two three'; MY_KEY=abcdef12; X=$TOKEN_OF; K=plain-value"}),
      Fixture::operation("session", {{"session", "1"}, {"command", "export API_SECRET=zyxwvuts && run"}}),
      Fixture::operation("http", {{"method", "GET"}, {"headers", {"Authorization: Bearer qwertyuiop"}}})};
  SecretMask mask;
  mask.learn(trajectory);
  CHECK(mask.text("one two three abcdef12 zyxwvuts Bearer qwertyuiop plain-value") ==
        "******** ******** ******** ******** plain-value");
}

TEST_CASE("an export has everything but the secrets, and comes back as it was", "[engine][export]") {
  const Fixture f;
  TrajectoryBuilder builder(f.home, Fixture::header());
  Operation plain = Fixture::command({"echo", kSecret, "and TOKEN=" + kSecret});
  plain.done->stdout_data = "it is " + kSecret + "\n\xff";
  Fixture::finish(builder, plain);
  // Across two records, between which the other stream says something, and across two files.
  Operation long_one = Fixture::command({"cat"});
  long_one.done->result = canonical_json(exec_result_json({}));
  const std::string half = kSecret.substr(0, 7), rest = kSecret.substr(7);
  Fixture::finish(builder, long_one,
                  {{"head", record(1, "a " + half) + record(2, "between") + record(1, rest + " b " + half, 2)},
                   {"1a", record(1, rest + " end", 3)},
                   {"stdin", std::string(200'000, '.') + kSecret + "tail"}});
  // The middle is missing.
  Operation cut = Fixture::command({"long"});
  ExecResult dropped;
  dropped.stdout_dropped = 1000;
  cut.done->result = canonical_json(exec_result_json(dropped));
  Fixture::finish(builder, cut, {{"head", record(1, "head " + half)}, {"1a", record(1, rest + " tail", 2)}});
  // In a name, in the two fields of one, in content across blocks, behind the end.
  const std::string tar = tar_entry("etc/" + kSecret, "x") + tar_entry("VALUE-42", "y", '0', "dir/s3cr3t") +
                          tar_entry("pad", std::string(505, 'p') + kSecret + "q") + std::string(1024, '\0') + kSecret;
  Fixture::finish(builder, Fixture::operation("write", {{"path", "/"}}), {{"tar", tar}});
  std::uint32_t checksum = 0;
  builder.append_file(
      kNetworkLog,
      sealed_line("{\"schema\":1}", checksum) +
          sealed_line(canonical_json({{"time_us", 1}, {"verdict", "allow"}, {"http", {"GET /" + kSecret}}}), checksum));
  const Trajectory before = f.published(builder);
  REQUIRE(shows(Fixture::everything(before)));

  const std::string text = f.exported(before);
  CHECK_FALSE(shows(text));
  CHECK_FALSE(shows(text, 7));
  const Trajectory inside = Trajectory::read(f.file);
  CHECK(inside.damage.empty());
  CHECK_FALSE(shows(Fixture::everything(inside)));
  CHECK_FALSE(inside.header.spec.config.env[0].find(kSecret) != std::string::npos);
  CHECK(inside.header.spec.config.env[1] == "PLAIN=visible");
  CHECK(inside.output(inside.operations[0], 0) == "it is XXXXXXXXXXXXXXX\n\xff");
  CHECK(inside.output(inside.operations[1], 0) == "a XXXXXXXXXXXXXXX b XXXXXXXXXXXXXXX end");
  CHECK(inside.output(inside.operations[1], 1) == "between");
  CHECK(inside.input(inside.operations[1]) == std::string(200'000, '.') + std::string(kSecret.size(), 'X') + "tail");
  CHECK(inside.output(inside.operations[2], 0) == "head XXXXXXXXXXXXXXX tail");
  CHECK(list_tar(inside.content(inside.operations[3]).get(), 10).find("0644 1 etc/XXXXXXXXXXXXXXX ") == 0);

  const ImportedTrajectory made = import_trajectory(f.home, f.file, {.format = {}, .header = {}, .name = "theirs"});
  const Trajectory after = Trajectory::read(f.home.trajectories() / made.id);
  CHECK(after.header.source == "dsec");
  CHECK(after.header.spec.name == "theirs");
  CHECK(after.header.id == before.header.id);
  CHECK(Fixture::everything(after) == Fixture::everything(inside));
  const NetworkLogContents network = read_network_log(after.directory);
  CHECK(network.damage.empty());
  REQUIRE(network.events.size() == 1);
  CHECK(network.events[0].http == std::vector<std::string>{"GET /XXXXXXXXXXXXXXX"});
  // What has nothing to hide is the same, byte for byte, but for when it was exported.
  CHECK(Fixture::everything(after) == Fixture::everything(Trajectory::read(f.home.trajectories() / made.id)));
}

TEST_CASE("what a report or a document shows of an output is masked at its edges", "[engine][export]") {
  const Fixture f;
  TrajectoryBuilder builder(f.home, Fixture::header());
  const std::string half = kSecret.substr(0, 7), rest = kSecret.substr(7);
  Fixture::finish(builder, Fixture::command({"cat"}),
                  {{"head", record(1, "a " + half) + record(2, "!") + record(1, rest + std::string(100, 'z'), 2)}});
  const Trajectory trajectory = f.published(builder);
  SecretMask mask;
  mask.learn(trajectory);
  for (std::size_t most = 1; most < 30; ++most) {
    std::string all;
    for (const OutputPiece& piece : masked_output(trajectory, trajectory.operations[0], mask, most)) all += piece.data;
    CHECK_FALSE(shows(all, 1 + (most > 3 ? 2 : 5)));
  }
}

TEST_CASE("a damaged export is refused with the reason, and nothing of it stays", "[engine][import]") {
  const Fixture f;
  TrajectoryBuilder builder(f.home, Fixture::header());
  for (int i = 0; i < 5; ++i) Fixture::finish(builder, Fixture::command({"true"}), {{"head", record(1, "said")}});
  const std::string good = f.exported(f.published(builder));
  const auto there = f.entries();
  const auto refused = [&](const std::string& text) {
    write_file_atomic(f.file, text);
    bool thrown = false;
    try {
      import_trajectory(f.home, f.file, {});
    } catch (const Error& error) {
      thrown = error.message().find("cannot import") == 0;
    }
    CHECK(thrown);
    CHECK(f.entries() == there);
  };
  for (std::size_t size = 0; size < good.size(); size += 61) refused(good.substr(0, size));
  refused(good.substr(0, good.size() - 1));
  for (std::size_t at = 40; at < good.size(); at += 97) {
    std::string altered = good;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    refused(altered);
  }
}

// Lines that say something wrong, sealed as if dsec had written them.
TEST_CASE("an export that says what cannot be is refused by name", "[engine][import]") {
  const Fixture f;
  TrajectoryBuilder builder(f.home, Fixture::header());
  Fixture::finish(builder, Fixture::command({"true"}), {{"head", record(1, "said")}});
  const std::string good = f.exported(f.published(builder));
  std::vector<std::string> bodies;
  for (std::size_t at = 0, end; (end = good.find('\n', at)) != std::string::npos; at = end + 1)
    bodies.push_back(good.substr(at, end - at - 18) + "}");
  REQUIRE(bodies.size() == 5);  // header, started, file, done, end

  struct Case {
    std::size_t line;
    std::string from, to, why;
  };
  const Case cases[] = {
      {0, "\"schema\":1", "\"schema\":2", "schema 2"},
      {0, "\"trajectory\":\"abcdef", "\"trajectory\":\"../../", "no id of a trajectory"},
      {0, "\"created_us\":1700000001000001", "\"created_us\":18446744073709551615", "too large"},
      {0, "\"exported_us\"", "\"exported_at\"", "without the files"},
      {1, "\"seq\":1", "\"seq\":2", "does not follow"},
      {1, "\"kind\":\"exec\"", "\"kind\":\"../exec\"", "no kind of operation"},
      {1, "\"op_id\":\"#1\"", "\"op_id\":\"a b\"", "no name for an operation"},
      {1, "\"argv\":[\"true\"]", "\"argv\":[{\"a\":1}]", "'base64' is missing"},
      {1, "\"time_us\":", "\"time_us\":9", "too large"},
      {1, "\"request\":{", "\"request\":[", "JSON"},
      {2, "\"1.head\"", "\"../1.head\"", "no file of operation"},
      {2, "\"1.head\"", "\"log.jsonl\"", "no file of operation"},
      {2, "\"1.head\"", "\"lock\"", "no file of operation"},
      {2, "\"1.head\"", "\"2.head\"", "no file of operation"},
      {2, "\"1.head\"", "\"1.stdin\"", "is not there"},
      {2, "\"record\":\"file\"", "\"record\":\"fill\"", "no kind of record"},
      {3, "\"seq\":1", "\"seq\":7", "has not begun"},
      {3, "\"seq\":1", "\"seq\":0", "has not begun"},
      {3, "\"bytes\":20", "\"bytes\":18446744073709551615", "not whole"},
      {3, "\"duration_us\":0", "\"duration_us\":18446744073709551615", "too large"},
      {3, "\"cause\":\"exited\"", "\"cause\":\"gone\"", "unknown cause"},
      {3, "\"outcome\":\"ok\"", "\"outcome\":\"fine\"", "unknown outcome"},
      {4, "\"files\":1", "\"files\":2", "not whole"},
      {4, "\"operations\":1", "\"operations\":0", "not whole"},
  };
  const auto there = f.entries();
  for (const Case& one : cases) {
    std::string text;
    std::uint32_t checksum = 0;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      std::string body = bodies[i];
      if (i == one.line) {
        const std::size_t at = body.find(one.from);
        INFO(one.from + " in " + body);
        REQUIRE(at != std::string::npos);
        body.replace(at, one.from.size(), one.to);
      }
      text += sealed_line(body, checksum);
    }
    write_file_atomic(f.file, text);
    std::string message = "nothing";
    try {
      import_trajectory(f.home, f.file, {});
    } catch (const Error& error) {
      message = error.message();
    }
    INFO(one.to);
    CHECK_THAT(message, Catch::Contains(one.why));
    CHECK(f.entries() == there);
  }
}

TEST_CASE("what is no trajectory is refused without being read as a whole", "[engine][import]") {
  const Fixture f;
  const auto refused = [&](const fs::path& file, const std::string& why) {
    REQUIRE_THROWS_WITH(import_trajectory(f.home, file, {}), "cannot import " + quote(file.native()));
    try {
      import_trajectory(f.home, file, {});
    } catch (const Error& error) {
      CHECK_THAT(error.message(), Catch::Contains(why));
    }
  };
  refused(f.scratch.path() / "nosuch", "No such file");
  refused("/dev/zero", "no regular file");
  refused(f.scratch.path(), "no regular file");
  const auto of = [&](const std::string& text) {
    write_file_atomic(f.file, text);
    return f.file;
  };
  refused(of(""), "no valid JSON");
  refused(of("{}"), "no trajectory that dsec knows");
  refused(of("[1,2]"), "no trajectory that dsec knows");
  refused(of(std::string(200'000, '[')), "nested deeper");
  std::string wide = "[1";
  for (int i = 0; i < 4'000'001; ++i) wide += ",1";
  refused(of(wide + "]"), "more than 4000000 values");
  refused(of("{\"created_us\":1" + std::string(20u << 20, ' ')), "damaged");
  const UniqueFd huge = open_file(f.file, O_WRONLY | O_TRUNC);
  REQUIRE(::ftruncate(huge.get(), off_t{1} << 40) == 0);
  refused(f.file, "more than 67108864 bytes");
}

}  // namespace
}  // namespace dsec::engine
