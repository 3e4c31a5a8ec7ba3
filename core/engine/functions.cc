#include "core/engine/functions.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"

namespace dsec::engine {
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

constexpr std::size_t kWaitingRemovals = 256;  // beyond these a call removes its own sandbox
constexpr std::size_t kPipe = 64 << 10;        // what the kernel takes for a command that does not read yet

// ---- files of a call as a tar stream ----

void append_number(std::string& header, std::size_t at, std::size_t digits, std::uint64_t value) {
  for (std::size_t i = digits; i-- > 0; value >>= 3) header[at + i] = static_cast<char>('0' + (value & 7));
}

// POSIX.1-1988 ustar; the tests read it with another implementation.
void append_tar(std::string& tar, const std::string& name, char type, std::uint32_t mode, std::string_view content) {
  constexpr std::size_t kBlock = 512, kName = 100;
  if (name.size() > kName)
    throw usage_error("the name of file " + quote(name) + " is longer than " + std::to_string(kName) + " bytes");
  std::string header(kBlock, '\0');
  std::memcpy(header.data(), name.data(), name.size());
  append_number(header, 100, 7, mode);
  append_number(header, 108, 7, 0);
  append_number(header, 116, 7, 0);
  append_number(header, 124, 11, content.size());
  append_number(header, 136, 11, 0);
  std::memset(header.data() + 148, ' ', 8);
  header[156] = type;
  std::memcpy(header.data() + 257, "ustar\00000", 8);
  std::uint64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  append_number(header, 148, 6, sum);
  header[154] = '\0';
  tar += header;
  tar += content;
  tar.append((kBlock - content.size() % kBlock) % kBlock, '\0');
}

void check_name(const std::string& name) {
  const std::filesystem::path path(name);
  const bool bad = name.empty() || path.is_absolute() || name.find('\0') != std::string::npos ||
                   std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".." || part == "."; });
  if (bad || name.back() == '/')
    throw usage_error(quote(name) + " is no name for a file of a call").hint("use a relative path without '..'");
}

// A reader of its own, at the beginning.
UniqueFd reopen(const UniqueFd& file) { return open_file("/proc/self/fd/" + std::to_string(file.get()), O_RDONLY); }

UniqueFd memory_file(std::string_view content) {
  UniqueFd file(::memfd_create("dsec-files", MFD_CLOEXEC));
  if (!file) throw system_error("memfd_create");
  write_all(file.get(), content);
  return file;
}

std::string tar_of(const std::vector<FunctionFile>& files) {
  std::string tar;
  std::set<std::string> directories, names;
  for (const FunctionFile& file : files) {
    check_name(file.name);
    if (!names.insert(file.name).second) throw usage_error("file " + quote(file.name) + " is given twice");
    for (std::size_t slash = file.name.find('/'); slash != std::string::npos; slash = file.name.find('/', slash + 1))
      if (directories.insert(file.name.substr(0, slash)).second)
        append_tar(tar, file.name.substr(0, slash) + "/", '5', 0755, "");
    append_tar(tar, file.name, '0', file.mode & 07777, file.content);
  }
  tar.append(1024, '\0');
  return tar;
}

// ---- one command under limits ----

// Writes while the output is read, so that neither waits for the other.
class InputWriter {
 public:
  InputWriter(ExecStream& stream, const std::string& input) {
    if (input.size() <= kPipe)
      write(stream, input);
    else
      thread_ = std::thread([&stream, &input] { write(stream, input); });
  }
  ~InputWriter() {
    if (thread_.joinable()) thread_.join();
  }
  InputWriter(const InputWriter&) = delete;
  InputWriter& operator=(const InputWriter&) = delete;

 private:
  static void write(ExecStream& stream, const std::string& input) {
    try {
      if (!input.empty()) stream.write_stdin(input);
      stream.close_stdin();
    } catch (const Error&) {
      // The command ended without reading it all, which is its own affair.
    }
  }
  std::thread thread_;
};

// Follows one command to its end, or ends it when it exceeds what the keeper does not watch: processor time and output.
class Attendance {
 public:
  Attendance(Engine& engine, const ReadySandbox& sandbox, const FunctionLimits& limits, double cores)
      : engine_(engine), sandbox_(sandbox), limits_(limits), cores_(cores), begin_(steady_clock::now()) {}

  // `timed`: by us, where the keeper began to count before the call.
  void follow(ExecStream& stream, bool timed, FunctionResult& result) {
    for (;;) {
      const std::optional<ExecEvent> event = stream.next(patience(timed));
      if (!event) {
        if (timed && steady_clock::now() >= begin_ + limits_.time) return end(Verdict::TimeLimit, result);
        if (cpu_exceeded()) return end(Verdict::TimeLimit, result, "processor time");
        continue;
      }
      if (event->kind == ExecEvent::Kind::Exited) {
        result.result = event->result;
        result.time = timed ? since_begin() : event->result.duration;
        return judge(result);
      }
      std::string& kept = event->kind == ExecEvent::Kind::Stderr ? result.errors : result.output;
      kept += event->data;
      if (kept.size() <= limits_.output) continue;
      kept.resize(limits_.output);
      return end(Verdict::OutputLimit, result);
    }
  }

 private:
  microseconds since_begin() const { return std::chrono::duration_cast<microseconds>(steady_clock::now() - begin_); }

  // Until a limit could be reached at the earliest: on n cores a second of processor time takes 1/n of the clock.
  std::optional<milliseconds> patience(bool timed) const {
    std::optional<milliseconds> wait;
    if (limits_.cpu_time) {
      const auto left = static_cast<double>((microseconds(*limits_.cpu_time) - cpu_used()).count()) / 1000;
      wait = milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(left / cores_)));
    }
    if (!timed) return wait;
    const auto left =
        std::max(milliseconds(0), std::chrono::ceil<milliseconds>(begin_ + limits_.time - steady_clock::now()));
    return wait ? std::min(*wait, left) : left;
  }
  microseconds cpu_of(const SandboxStats& stats) const {
    return microseconds(std::max(stats.cpu_usec, sandbox_.cpu_usec) - sandbox_.cpu_usec);
  }
  microseconds cpu_used() const { return cpu_of(engine_.stats(sandbox_.id)); }
  bool cpu_exceeded() const { return limits_.cpu_time && cpu_used() >= *limits_.cpu_time; }

  SandboxStats measure(FunctionResult& result) {
    const SandboxStats stats = engine_.stats(sandbox_.id);
    result.cpu_time = cpu_of(stats);
    result.memory_peak = stats.memory_peak.value_or(0);
    return stats;
  }

  void end(Verdict verdict, FunctionResult& result, const char* detail = "") {
    result.verdict = verdict;
    result.result.cause = verdict == Verdict::TimeLimit ? ExecResult::Cause::TimedOut : ExecResult::Cause::Signalled;
    result.result.signal = SIGKILL;
    result.detail = detail;
    result.time = since_begin();
    measure(result);
    engine_.stop(sandbox_.id, milliseconds(0));
  }

  // Nobody but the kernel for memory, itself or the end of its sandbox kills a command.
  bool killed_with_sandbox(const ExecResult& result) const {
    constexpr milliseconds kEnding{200};
    if (result.cause != ExecResult::Cause::Signalled || result.signal != SIGKILL) return false;
    try {
      engine_.wait(sandbox_.id, kEnding);
      return true;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Usage;  // it is not there any more
    }
  }

  void judge(FunctionResult& result) {
    if (killed_with_sandbox(result.result)) {
      result.verdict = Verdict::Killed;
      return;
    }
    using Cause = ExecResult::Cause;
    const SandboxStats stats = measure(result);
    const Cause cause = result.result.cause;
    result.detail = result.result.detail;
    result.verdict = cause == Cause::TimedOut      ? Verdict::TimeLimit
                     : cause == Cause::OutOfMemory ? Verdict::MemoryLimit
                     : cause == Cause::Lost        ? Verdict::Killed
                     : result.result.shell_code()  ? Verdict::RuntimeError
                                                   : Verdict::Ok;
    // A program whose child was killed for memory ends in a way of its own.
    if (result.verdict == Verdict::RuntimeError && stats.oom_kills.value_or(0) > 0)
      result.verdict = Verdict::MemoryLimit;
    if (result.verdict == Verdict::MemoryLimit && stats.memory_limit)
      result.detail =
          "of a limit of " + format_size(stats.memory_limit) + " the most used was " + format_size(result.memory_peak);
  }

  Engine& engine_;
  const ReadySandbox& sandbox_;
  const FunctionLimits& limits_;
  const double cores_;
  const steady_clock::time_point begin_;
};

void cannot_tell(Verdict verdict, const Error& error, FunctionResult& result) {
  result.verdict = verdict;
  result.detail = result.result.detail = error.message();
  result.result.cause = ExecResult::Cause::Lost;
}

double cores_of(const FunctionType& type) {
  const double all = std::max(1u, std::thread::hardware_concurrency());
  return std::min(type.sandbox.limits.cpus.value_or(all), all);
}

}  // namespace

Functions::Functions(Engine& engine, const Home& home, Refill refill)
    : engine_(engine), home_(home), refill_(std::move(refill)), remover_([this] { remove_discarded(); }) {}

Functions::~Functions() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  remover_.join();
}

void Functions::remove(const std::string& id) noexcept {
  try {
    engine_.remove(id, true);
  } catch (const std::exception&) {
    // It is marked to go at its end: gc does it.
  }
}

void Functions::remove_discarded() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [&] { return ending_ || !discarded_.empty(); });
    if (discarded_.empty()) return;
    const std::string id = std::move(discarded_.front());
    discarded_.pop_front();
    lock.unlock();
    remove(id);
    lock.lock();
  }
}

void Functions::discard(const std::string& id) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (discarded_.size() < kWaitingRemovals) {
      discarded_.push_back(id);
      changed_.notify_one();
      return;
    }
  }
  remove(id);
}

ReadySandbox Functions::sandbox_for(const FunctionType& type, bool& from_pool) {
  FunctionPool pool(engine_, home_, type);
  if (type.spec.pool > 0) {
    std::optional<ReadySandbox> ready = pool.take();
    if (refill_) refill_(type);
    from_pool = ready.has_value();
    if (ready) return *std::move(ready);
  }
  return pool.make();
}

FunctionResult Functions::call(const FunctionType& type, const FunctionCall& call) {
  FunctionArtefact artefact;
  if (!type.spec.compile.empty()) {
    FunctionResult compiled = compile(type, call, artefact);
    if (compiled.verdict != Verdict::Ok) return compiled;
  }
  return run(type, call, artefact);
}

FunctionResult Functions::compile(const FunctionType& type, const FunctionCall& call, FunctionArtefact& artefact) {
  FunctionResult result;
  result.stage = "compile";
  const UniqueFd files = memory_file(tar_of(call.files));
  try {
    const ReadySandbox sandbox{engine_.create(sandbox_of(type)).id, "", 0};
    const Discard discard{*this, sandbox.id};
    const std::string& workdir = type.sandbox.config.workdir;
    engine_.copy_in(sandbox.id, workdir, reopen(files).get());
    const FunctionLimits& limits = type.spec.compile_limits;
    attend(type, sandbox, {.argv = type.spec.compile, .env = {}, .timeout = limits.time}, limits, "", result);
    if (result.verdict != Verdict::Ok) return result;
    artefact.tar = memory_file("");
    engine_.copy_out(sandbox.id, workdir + "/.", artefact.tar.get());
  } catch (const Error& error) {
    cannot_tell(Verdict::Infra, error, result);
  }
  return result;
}

FunctionResult Functions::run(const FunctionType& type, const FunctionCall& call, const FunctionArtefact& artefact) {
  if (type.spec.preload && !call.args.empty())
    throw usage_error("function " + quote(type.spec.name) + " starts its command before a call: it takes no arguments");
  UniqueFd files;
  if (!artefact.tar && !call.files.empty()) files = memory_file(tar_of(call.files));
  for (;;) {
    FunctionResult result;
    bool from_pool = false;
    try {
      const ReadySandbox sandbox = sandbox_for(type, from_pool);
      const Discard discard{*this, sandbox.id};
      if (const UniqueFd& tar = artefact.tar ? artefact.tar : files)
        engine_.copy_in(sandbox.id, type.sandbox.config.workdir, reopen(tar).get());
      const FunctionLimits& limits = type.spec.run_limits;
      ExecSpec spec{.argv = type.spec.command, .env = {}, .open_stdin = true, .timeout = limits.time};
      spec.argv.insert(spec.argv.end(), call.args.begin(), call.args.end());
      attend(type, sandbox, std::move(spec), limits, call.input, result);
    } catch (const Error& error) {
      cannot_tell(Verdict::Infra, error, result);
    }
    result.from_pool = from_pool;
    // A sandbox that ended while it waited says nothing of the call: the next is taken, at last a new one.
    if (result.verdict != Verdict::Infra || !from_pool) return result;
  }
}

void Functions::attend(const FunctionType& type, const ReadySandbox& sandbox, ExecSpec spec,
                       const FunctionLimits& limits, const std::string& input, FunctionResult& result) {
  // One byte more, so that a command that writes too much is told from one that writes just so much.
  spec.output_limit = limits.output + 1;
  const bool preloaded = !sandbox.exec_id.empty();
  Attendance attendance(engine_, sandbox, limits, cores_of(type));
  const std::unique_ptr<ExecStream> stream =
      preloaded ? engine_.attach(sandbox.id, sandbox.exec_id) : engine_.exec(sandbox.id, spec);
  try {
    // Its end waits for the attendance, which ends a command that reads no further.
    std::optional<InputWriter> writer;
    if (spec.open_stdin) writer.emplace(*stream, input);
    attendance.follow(*stream, preloaded, result);
  } catch (const Error& error) {
    // It ran, and then its sandbox was not there any more.
    cannot_tell(Verdict::Killed, error, result);
  }
}

}  // namespace dsec::engine
