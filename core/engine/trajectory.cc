#include "core/engine/trajectory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_bytes.h"
#include "core/base/sealed_lines.h"
#include "core/engine/sandbox_id.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

TrajectoryHeader header_of(SealedLines& log, const fs::path& file) {
  return attempt("cannot read the trajectory " + quote(file.native()), [&] {
    if (!log.next()) throw failure(log.damage().empty() ? "it has no header" : log.damage());
    return trajectory_header_from(log.json());
  });
}

// With its checksum it is no longer than readers take.
constexpr std::size_t kMostRecord = (16u << 20) - 64;

void take(const Json& json, std::vector<Operation>& operations) {
  if (json_string(json, "record") == "started") {
    Operation operation = operation_from(json);
    if (operation.seq != operations.size() + 1) throw usage_error("its number does not follow the one before");
    operations.push_back(std::move(operation));
    return;
  }
  const std::uint64_t seq = json_u64(json, "seq");
  if (seq < 1 || seq > operations.size()) throw usage_error("it ends an operation that has not begun");
  if (operations[seq - 1].done) throw usage_error("it ends an operation a second time");
  operations[seq - 1].done = done_from(json);
}

std::uint64_t size_of(const fs::path& directory) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    struct stat info = {};
    if (::lstat(at->path().c_str(), &info) == 0) bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace

UniqueFd unnamed_file() {
  UniqueFd file(::open(fs::temp_directory_path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  // Not every filesystem has them.
  if (!file) file = UniqueFd(::memfd_create("dsec", MFD_CLOEXEC));
  if (!file) throw system_error("make a temporary file");
  return file;
}

Trajectory Trajectory::read(const fs::path& place) {
  std::error_code error;
  const bool is_directory = fs::is_directory(place, error);
  const fs::path file = is_directory ? place / kTrajectoryLog : place;
  SealedLines log(file);
  Trajectory trajectory;
  trajectory.directory = is_directory ? place : place.parent_path();
  trajectory.header = header_of(log, file);
  std::shared_ptr<EmbeddedFiles> embedded;
  bool ended = false;
  for (std::uint64_t at = log.good_bytes(); log.next(); at = log.good_bytes()) {
    try {
      const Json json = log.json();
      const std::string record = json_string(json, "record");
      if (record == kEndRecord) {
        ended = true;
        break;
      }
      if (record != kFileRecord) {
        take(json, trajectory.operations);
        continue;
      }
      if (!embedded) trajectory.embedded = embedded = std::make_shared<EmbeddedFiles>(file);
      if (!json.contains("data")) throw usage_error("a part of a file has no data");
      embedded->note(json_string(json, "name"), at, log.text().size());
    } catch (const Error& bad) {
      log.damaged("line " + std::to_string(log.number()) + " of " + quote(file.native()) + ": " + bad.message());
      break;
    }
  }
  trajectory.damage = log.damage();
  if (embedded && !ended && trajectory.damage.empty()) trajectory.damage = quote(file.native()) + " ends early";
  return trajectory;
}

const Operation* Trajectory::find(std::string_view op_id) const {
  const auto found = std::find_if(operations.begin(), operations.end(),
                                  [&](const Operation& operation) { return operation.op_id == op_id; });
  return found == operations.end() ? nullptr : &*found;
}

void Trajectory::output(const Operation& operation, Marks marks, const SpoolSink& sink) const {
  if (!operation.done) return;
  const Operation::Done& done = *operation.done;
  if (!done.stdout_data.empty()) sink(0, done.time, done.stdout_data);
  if (!done.stderr_data.empty()) sink(1, done.time, done.stderr_data);
  if (done.output.empty()) return;
  std::vector<SpoolPart> parts;
  for (const Operation::Part& part : done.output) parts.push_back({beside(part.name), part.bytes});
  std::uint64_t dropped[2] = {};
  if (marks == Marks::With) {
    const Json result = parse_json(done.result, "result");
    dropped[0] = json_u64_or(result, "stdout_dropped", 0);
    dropped[1] = json_u64_or(result, "stderr_dropped", 0);
  }
  read_spool(parts, dropped, sink);
}

std::string Trajectory::output(const Operation& operation, unsigned stream) const {
  std::string text;
  output(operation, Marks::Without, [&](unsigned from, auto, std::string_view data) {
    if (from == stream) text += data;
  });
  return text;
}

std::string Trajectory::input(const Operation& operation) const {
  if (!operation.done) return "";
  if (!operation.done->stdin_file) return operation.done->stdin_data;
  const Operation::Part& part = *operation.done->stdin_file;
  return read_all(beside(part.name).get(), part.bytes);
}

bool Trajectory::input_was_cut(const Operation& operation) const {
  if (!operation.done) return false;
  const std::uint64_t given =
      operation.done->stdin_file ? operation.done->stdin_file->bytes : operation.done->stdin_data.size();
  return given >= json_u64_or(parse_json(operation.request, "request"), "output_limit", header.spec.limits.output);
}

UniqueFd Trajectory::content(const Operation& operation) const {
  if (!operation.done || !operation.done->content || operation.done->content->name.empty()) return UniqueFd();
  return beside(operation.done->content->name);
}

UniqueFd Trajectory::beside(const std::string& name) const {
  if (embedded) return embedded->open(name);
  return open_file(directory / name, O_RDONLY | O_NOFOLLOW);
}

UniqueFd Trajectory::beside_if_there(const std::string& name) const {
  const bool there = embedded ? embedded->has(name) : fs::exists(fs::symlink_status(directory / name));
  return there ? beside(name) : UniqueFd();
}

UniqueFd EmbeddedFiles::open(const std::string& name) const {
  const auto found = parts_.find(name);
  if (found == parts_.end()) throw failure("file " + quote(name) + " is not in " + quote(file_.native()));
  const UniqueFd from = open_file(file_, O_RDONLY | O_NOFOLLOW);
  UniqueFd to = unnamed_file();
  for (const Part& part : found->second) {
    std::string line(part.size, '\0');
    const ssize_t got = ::pread(from.get(), line.data(), line.size(), static_cast<off_t>(part.at));
    if (got != static_cast<ssize_t>(line.size())) throw system_error("read " + quote(file_.native()));
    write_all(to.get(), bytes_of_json(parse_json(line, file_.native()).at("data")));
  }
  if (::lseek(to.get(), 0, SEEK_SET) != 0) throw system_error("read " + quote(file_.native()));
  return to;
}

std::optional<Operation> find_operation(const fs::path& directory, std::string_view op_id) {
  const fs::path file = directory / kTrajectoryLog;
  SealedLines log(file);
  header_of(log, file);
  // An op_id has nothing that JSON would write in another way.
  const std::string named = "\"op_id\":\"" + std::string(op_id) + "\"";
  std::optional<Operation> found;
  while (log.next()) {
    if (log.text().find(named) == std::string_view::npos) continue;
    const Json json = log.json();
    if (json_string(json, "op_id") != op_id) continue;
    if (json_string(json, "record") == "started") {
      found = operation_from(json);
    } else if (found) {
      found->done = done_from(json);
      return found;
    }
  }
  // What cannot be read may be the very operation: not to find it would let it run twice.
  if (!log.damage().empty()) throw failure(log.damage());
  return found;
}

TrajectoryHeader read_trajectory_header(const fs::path& directory) {
  const fs::path file = directory / kTrajectoryLog;
  SealedLines log(file);
  return header_of(log, file);
}

std::uint32_t TrajectoryWriter::create(const fs::path& directory, const TrajectoryHeader& header) {
  make_directories(directory.parent_path(), 0700);
  if (::mkdir(directory.c_str(), 0700) != 0) throw system_error("mkdir " + quote(directory.native()));
  std::uint32_t checksum = 0;
  const std::string line = sealed_line(to_line(header), checksum);
  // Whoever sees a log sees its header.
  const fs::path unnamed = directory / ".log.jsonl", log = directory / kTrajectoryLog;
  write_all(open_file(unnamed, O_WRONLY | O_CREAT | O_EXCL, 0600).get(), line);
  if (::rename(unnamed.c_str(), log.c_str()) != 0) throw system_error("rename " + quote(unnamed.native()));
  return checksum;
}

TrajectoryWriter::TrajectoryWriter(const fs::path& directory)
    : directory_(directory), lock_(directory / "lock", FileLock::Mode::Exclusive) {
  const fs::path file = directory / kTrajectoryLog;
  SealedLines log(file);
  header_of(log, file);
  while (log.next())
    if (log.text().find("\"record\":\"started\"") != std::string_view::npos &&
        json_string(log.json(), "record") == "started")
      ++next_seq_;
  if (!log.damage().empty()) throw failure(log.damage());
  checksum_ = log.checksum();
  log_ = open_file(file, O_WRONLY | O_APPEND | O_NOFOLLOW);
  if (::ftruncate(log_.get(), static_cast<off_t>(log.good_bytes())) != 0)
    throw system_error("truncate " + quote(file.native()));
}

void TrajectoryWriter::append(const std::string& body) {
  if (body.size() > kMostRecord)
    throw usage_error("a record of " + std::to_string(body.size()) + " bytes is longer than a line may be");
  std::uint32_t next = checksum_;
  write_all(log_.get(), sealed_line(body, next));
  checksum_ = next;
}

std::uint64_t TrajectoryWriter::started(Operation operation) {
  operation.seq = next_seq_;
  if (operation.op_id.empty()) operation.op_id = "#" + std::to_string(operation.seq);
  append(started_line(operation));
  return next_seq_++;
}

void TrajectoryWriter::done(const Operation& operation) { append(done_line(operation)); }

void TrajectoryWriter::sync() {
  if (::fdatasync(log_.get()) != 0) throw system_error("flush " + quote((directory_ / kTrajectoryLog).native()));
  sync_directory(directory_);
  sync_directory(directory_.parent_path());
}

std::vector<std::string> trajectory_ids(const Home& home) {
  std::vector<std::string> ids;
  std::error_code error;
  for (fs::directory_iterator at(home.trajectories(), error), end; !error && at != end; at.increment(error))
    if (std::string id = at->path().filename().native(); is_sandbox_id(id)) ids.push_back(std::move(id));
  if (error && error != std::errc::no_such_file_or_directory)
    throw system_error("list " + quote(home.trajectories().native()), error.value());
  return ids;
}

std::vector<TrajectoryInfo> list_trajectories(const Home& home, std::vector<std::string>& problems) {
  std::vector<TrajectoryInfo> found;
  for (const std::string& id : trajectory_ids(home)) {
    const fs::path place = home.trajectories() / id, file = place / kTrajectoryLog;
    const bool live = fs::exists(home.sandboxes() / id);
    if (!fs::exists(file)) {
      // Its maker is about to write the first line, or died before.
      TrajectoryInfo info{};
      info.id = id, info.live = live;
      found.push_back(std::move(info));
      continue;
    }
    try {
      SealedLines log(file);
      const TrajectoryHeader header = header_of(log, file);
      TrajectoryInfo info{id, header.environment, header.source, header.created, header.created, 0, 0, live, {}};
      while (log.next()) info.operations += log.text().find("\"record\":\"started\"") != std::string_view::npos;
      struct stat status = {};
      if (::stat(file.c_str(), &status) == 0)
        info.last = std::chrono::system_clock::from_time_t(status.st_mtim.tv_sec) +
                    std::chrono::microseconds(status.st_mtim.tv_nsec / 1000);
      info.bytes = size_of(place);
      for (const auto& layer : header.layers) info.layers.push_back(layer.digest);
      found.push_back(std::move(info));
    } catch (const Error& problem) {
      problems.push_back(problem.message());
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.created > b.created; });
  return found;
}

std::vector<TrajectoryInfo> expired_trajectories(std::vector<TrajectoryInfo> all, const TrajectoryLimits& limits,
                                                 std::chrono::system_clock::time_point now) {
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.last < b.last; });
  std::uint64_t bytes = 0;
  for (const TrajectoryInfo& info : all) bytes += info.bytes;
  std::vector<TrajectoryInfo> expired;
  for (TrajectoryInfo& info : all) {
    // Nothing happened in it.
    const bool empty = info.operations == 0;
    if (info.live || (!empty && now - info.last <= limits.age && bytes <= limits.bytes)) continue;
    bytes -= info.bytes;
    expired.push_back(std::move(info));
  }
  return expired;
}

void remove_trajectory(const Home& home, const std::string& id) { remove_tree(home.trajectories() / id); }

}  // namespace dsec::engine
