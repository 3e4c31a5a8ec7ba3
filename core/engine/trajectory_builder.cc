#include "core/engine/trajectory_builder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_bytes.h"
#include "core/base/spool_record.h"
#include "core/engine/network_log.h"
#include "core/engine/sandbox_id.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kMostOperations = 1'000'000, kMostFiles = 200'000;
// What a keeper writes into the log itself.
constexpr std::size_t kInline = 16u << 10;

constexpr std::string_view kSuffixes[] = {"head", "1a", "1b", "2a", "2b", "stdin", "tar"};

// "12.head": a name that a keeper would have given, and so never the log or a way out of its directory.
bool is_file_of(const std::string& name, std::uint64_t seq) {
  const std::string begin = std::to_string(seq) + ".";
  return name.starts_with(begin) && std::find(std::begin(kSuffixes), std::end(kSuffixes),
                                              std::string_view(name).substr(begin.size())) != std::end(kSuffixes);
}

void check_bytes(const Json& object, const char* key) {
  if (const auto found = object.find(key); found != object.end()) bytes_of_json(*found);
}

}  // namespace

void check_operation(const Operation& operation) {
  attempt("operation " + std::to_string(operation.seq), [&] {
    const auto word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
    if (operation.kind.empty() || operation.kind.size() > 32 ||
        !std::all_of(operation.kind.begin(), operation.kind.end(), word))
      throw usage_error(quote(operation.kind) + " is no kind of operation");
    if (operation.op_id.empty()) throw usage_error("its op_id is empty");
    if (operation.named()) check_op_id(operation.op_id);
    if (operation.exec_id.size() > 20 || !std::all_of(operation.exec_id.begin(), operation.exec_id.end(), word))
      throw usage_error(quote(operation.exec_id) + " is no name of a command");
    const Json request = parse_json(operation.request, "request");
    exec_spec_of(operation);
    for (const char* key : {"command", "path"}) check_bytes(request, key);
    if (!operation.done) return;
    const Json result = parse_json(operation.done->result, "result");
    if (operation.done->outcome == Operation::Outcome::Failed) {
      const Json chain = result.value("error", Json::object()).value("chain", Json::array());
      if (!std::all_of(chain.begin(), chain.end(), [](const Json& cause) { return cause.is_string(); }))
        throw usage_error("the causes of its failure are no texts");
    } else if (operation.done->outcome == Operation::Outcome::Ok &&
               (operation.kind == "exec" || operation.kind == "session")) {
      exec_result_from(result);
    }
  });
}

TrajectoryBuilder::TrajectoryBuilder(const Home& home, const TrajectoryHeader& header)
    : home_(home), id_(home.host_id() + random_id(16)), stage_([&] {
        make_directories(home.trajectories(), 0700);
        return TempDirectory(home.trajectories());
      }()) {
  TrajectoryHeader own = header;
  if (own.id.empty()) own.id = id_;
  TrajectoryWriter::create(stage_.path() / "made", own);
  writer_ = std::make_unique<TrajectoryWriter>(stage_.path() / "made");
}

TrajectoryBuilder::~TrajectoryBuilder() = default;

void TrajectoryBuilder::started(Operation operation) {
  if (operation.seq != 0 && operation.seq != begun_ + 1)
    throw usage_error("operation " + std::to_string(operation.seq) + " does not follow the one before");
  if (begun_ == kMostOperations)
    throw usage_error("it has more than " + std::to_string(kMostOperations) + " operations");
  close_file();
  operation.seq = begun_ + 1;
  if (operation.op_id.empty() || !operation.named()) operation.op_id = "#" + std::to_string(operation.seq);
  operation.done.reset();
  check_operation(operation);
  if (operation.named() && !op_ids_.insert(operation.op_id).second)
    throw usage_error("two operations are named " + quote(operation.op_id));
  writer_->started(std::move(operation));
  ended_.push_back(false);
  ++begun_;
}

void TrajectoryBuilder::done(const Operation& operation) {
  if (operation.seq < 1 || operation.seq > begun_) throw usage_error("an operation ends that has not begun");
  if (ended_[operation.seq - 1])
    throw usage_error("operation " + std::to_string(operation.seq) + " ends a second time");
  close_file();
  check_operation(operation);
  const Operation::Done& done = operation.done.value();
  attempt("operation " + std::to_string(operation.seq), [&] {
    for (const Operation::Part& part : done.output) need(part.name, part.bytes);
    if (done.stdin_file) need(done.stdin_file->name, done.stdin_file->bytes);
    if (done.content && !done.content->name.empty()) {
      Digest::parse(done.content->sha256);
      need(done.content->name, done.content->bytes);
    }
  });
  writer_->done(operation);
  ended_[operation.seq - 1] = true;
}

void TrajectoryBuilder::add(Operation operation) {
  started(operation);
  operation.seq = begun_;
  if (operation.op_id.empty() || !operation.named()) operation.op_id = "#" + std::to_string(operation.seq);
  Operation::Done& done = operation.done.value();
  if (done.stdout_data.size() > kInline || done.stderr_data.size() > kInline) {
    const std::string name = std::to_string(operation.seq) + ".head";
    const auto time = std::chrono::duration_cast<std::chrono::microseconds>(done.time.time_since_epoch());
    std::uint64_t bytes = 0;
    std::uint32_t stream = 0;
    for (std::string* data : {&done.stdout_data, &done.stderr_data}) {
      ++stream;
      if (data->empty()) continue;
      const SpoolRecord record{static_cast<std::uint64_t>(time.count()), static_cast<std::uint32_t>(data->size()),
                               stream};
      append_file(name, {reinterpret_cast<const char*>(&record), sizeof record});
      append_file(name, *data);
      bytes += sizeof record + data->size();
      data->clear();
    }
    done.output = {{name, bytes}};
  }
  this->done(operation);
}

void TrajectoryBuilder::append_file(const std::string& name, std::string_view data) {
  if (name != open_name_) {
    close_file();
    if (name != kNetworkLog && (begun_ == 0 || ended_[begun_ - 1] || !is_file_of(name, begun_)))
      throw usage_error(quote(name) + " is no file of operation " + std::to_string(begun_));
    if (++file_count_ > kMostFiles) throw usage_error("it has more than " + std::to_string(kMostFiles) + " files");
    if (files_.contains(name)) throw usage_error("file " + quote(name) + " comes a second time");
    open_file_ = open_file(stage_.path() / "made" / name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    open_name_ = name;
    files_[name] = 0;
  }
  write_all(open_file_.get(), data);
  files_[name] += data.size();
}

void TrajectoryBuilder::close_file() {
  if (open_file_ && ::fdatasync(open_file_.get()) != 0) throw system_error("flush " + quote(open_name_));
  open_file_.reset();
  open_name_.clear();
}

void TrajectoryBuilder::need(const std::string& name, std::uint64_t bytes) {
  const auto found = files_.find(name);
  if (found == files_.end()) throw usage_error("its file " + quote(name) + " is not there");
  if (found->second < bytes) throw usage_error("its file " + quote(name) + " is not whole");
  files_.erase(found);
}

void TrajectoryBuilder::publish() {
  close_file();
  files_.erase(kNetworkLog);
  if (!files_.empty()) throw usage_error("file " + quote(files_.begin()->first) + " belongs to no operation");
  if (begun_ == 0) throw usage_error("it has no operations");
  writer_->sync();
  writer_.reset();
  const fs::path made = stage_.path() / "made", place = home_.trajectories() / id_;
  if (::rename(made.c_str(), place.c_str()) != 0) throw system_error("rename " + quote(made.native()));
  sync_directory(home_.trajectories());
}

}  // namespace dsec::engine
