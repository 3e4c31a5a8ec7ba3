#include "core/engine/function_pool.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::engine {
namespace fs = std::filesystem;
using namespace std::chrono_literals;
namespace {

constexpr const char* kFillLock = ".fill";
constexpr auto kWarmUpTime = 60s;
// A preloaded command that has used no processor time for so long waits for its input.
constexpr auto kStill = 30ms;

std::string last_of(const std::string& text) {
  constexpr std::size_t kMost = 400;
  return text.size() <= kMost ? text : "..." + text.substr(text.size() - kMost);
}

}  // namespace

SandboxSpec sandbox_of(const FunctionType& type) {
  SandboxSpec spec = type.sandbox;
  spec.name.clear();
  spec.backend = "fncall";
  spec.labels[kFunctionLabel] = type.spec.name;
  spec.remove_at_end = true;
  // One that is used once and thrown away: the verdict is all that stays.
  spec.record = false;
  spec.lifetime.reset();
  return spec;
}

FunctionPool::FunctionPool(Engine& engine, const Home& home, const FunctionType& type)
    : engine_(engine), type_(type), directory_(home.run() / "functions" / type.digest().hex()) {}

std::vector<std::string> FunctionPool::ids() const {
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_, error))
    if (const std::string name = entry.path().filename(); name.front() != '.') found.push_back(name);
  return found;
}

std::size_t FunctionPool::ready() const { return ids().size(); }

bool FunctionPool::claim(const std::string& id, ReadySandbox& ready) {
  const fs::path path = directory_ / id;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  const std::string text = read_all(file.get());
  if (::unlink(path.c_str()) != 0) return false;
  const Json json = parse_json(text, path.native());
  ready = {id, json_string(json, "exec_id"), json_u64(json, "cpu_usec")};
  return true;
}

std::optional<ReadySandbox> FunctionPool::take() {
  ReadySandbox ready;
  for (const std::string& id : ids())
    if (claim(id, ready)) return ready;
  return std::nullopt;
}

void FunctionPool::offer(const ReadySandbox& ready) {
  // Not durable: what it stands for does not survive the host either.
  const fs::path temp = directory_ / (".new-" + ready.id);
  {
    const UniqueFd file = open_file(temp, O_WRONLY | O_CREAT | O_EXCL, 0600);
    write_all(file.get(), canonical_json({{"exec_id", ready.exec_id}, {"cpu_usec", ready.cpu_usec}}));
  }
  if (::rename(temp.c_str(), (directory_ / ready.id).c_str()) != 0)
    throw system_error("rename " + quote(temp.native()));
}

void FunctionPool::warm_up(const std::string& id) {
  std::string errors;
  const auto stream = engine_.exec(id, {.argv = type_.spec.warm_up, .env = {}, .timeout = kWarmUpTime});
  while (const std::optional<ExecEvent> event = stream->next()) {
    if (event->kind == ExecEvent::Kind::Stderr) errors = last_of(errors + event->data);
    if (event->kind != ExecEvent::Kind::Exited) continue;
    if (const int code = event->result.shell_code(); code != 0)
      throw failure("its warm_up command ended with exit code " + std::to_string(code) +
                    (errors.empty() ? "" : ": " + quote(errors)));
    return;
  }
}

std::string FunctionPool::preload(const std::string& id) {
  const std::string exec_id =
      engine_.exec(id, {.argv = type_.spec.command, .env = {}, .open_stdin = true, .detach = true})->exec_id();
  const auto end = std::chrono::steady_clock::now() + kWarmUpTime;
  std::uint64_t used = engine_.stats(id).cpu_usec;
  for (;;) {
    std::this_thread::sleep_for(kStill);
    const std::uint64_t now = engine_.stats(id).cpu_usec;
    if (now == used || std::chrono::steady_clock::now() > end) return exec_id;
    used = now;
  }
}

ReadySandbox FunctionPool::make() {
  SandboxSpec spec = sandbox_of(type_);
  spec.idle = type_.spec.pool_idle;
  ReadySandbox ready{engine_.create(spec).id, "", 0};
  try {
    if (!type_.spec.warm_up.empty()) warm_up(ready.id);
    if (type_.spec.preload) ready.exec_id = preload(ready.id);
    ready.cpu_usec = engine_.stats(ready.id).cpu_usec;
    return ready;
  } catch (...) {
    const std::exception_ptr failed = std::current_exception();
    try {
      engine_.remove(ready.id, true);
    } catch (const Error&) {
      // It is marked to go at its end; gc finds it.
    }
    std::rethrow_exception(failed);
  }
}

void FunctionPool::fill(const std::atomic<bool>& stop) {
  if (type_.spec.pool == 0) return;
  make_directories(directory_, 0700);
  // Looks again after letting go: somebody may have taken one while the lock was still held, and left it to us.
  while (!stop && ready() < type_.spec.pool) {
    const FileLock lock = FileLock::try_lock(directory_ / kFillLock, FileLock::Mode::Exclusive);
    if (!lock) return;
    while (!stop && ready() < type_.spec.pool) offer(make());
  }
}

std::size_t FunctionPool::drain() {
  std::size_t removed = 0;
  while (const std::optional<ReadySandbox> ready = take()) {
    try {
      engine_.remove(ready->id, true);
      ++removed;
    } catch (const Error& error) {
      // It ended by itself, and somebody removed it.
      if (error.kind() != ErrorKind::Usage) throw;
    }
  }
  return removed;
}

}  // namespace dsec::engine
