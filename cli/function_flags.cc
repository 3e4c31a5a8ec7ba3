#include "cli/function_flags.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.h"
#include "cli/environment.h"
#include "cli/exec_json.h"
#include "cli/fetch.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/build/project.h"

namespace dsec::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLargestFile = 256u << 20;  // it is held in memory, here and in the sandbox's pipe

template <typename T>
void override_limit(std::optional<T>& limit, const std::optional<T>& over) {
  if (over) limit = over;
}

}  // namespace

void declare(Command& command, FunctionFlags& flags) {
  command.option("-p,--project", "FILE", flags.project, "The description (default: dsec.yaml)");
  command.options("--arg", "NAME=VALUE", flags.args, "Value of ${NAME} in it");
  command.options("--registry", "NAME|URL", flags.registries,
                  "Where to pull layers from that are not here (default: all that are configured)");
}

FunctionType find_function(Invocation& call, const FunctionFlags& flags, const std::string& name) {
  const auto args = parse_labels(flags.args);
  const layers::Project project = layers::Project::load(flags.project, args);
  const FunctionSpec* spec = project.function(name);
  if (!spec) {
    std::vector<std::string> names;
    for (const FunctionSpec& other : project.functions) names.push_back(other.name);
    Error error = usage_error(quote(flags.project) + " has no function " + quote(name));
    for (const std::string& near : nearest_names(name, names)) error.hint("did you mean " + near);
    throw std::move(error).hint("dsec fn ls lists them");
  }
  engine::SandboxRequest request = request_of_environment(spec->environment, flags.project, args);
  SandboxSpec& settings = request.settings;
  override_limit(settings.limits.cpus, spec->limits.cpus);
  override_limit(settings.limits.memory, spec->limits.memory);
  override_limit(settings.limits.pids, spec->limits.pids);
  override_limit(settings.limits.disk, spec->limits.disk);
  if (spec->limits.cpu_class != CpuClass::Default) settings.limits.cpu_class = spec->limits.cpu_class;
  settings.devices.insert(settings.devices.end(), spec->devices.begin(), spec->devices.end());
  settings.gpus = spec->gpus;
  if (!spec->workdir.empty()) settings.config.workdir = spec->workdir;
  FunctionType type{*spec, engine::compose_spec(find_or_pull(call, request.layers, flags.registries), request)};
  if (type.sandbox.config.workdir.empty()) type.sandbox.config.workdir = "/";
  return type;
}

FunctionFile read_function_file(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string path = equals == std::string::npos ? text : text.substr(equals + 1);
  const UniqueFd file = open_file(path, O_RDONLY);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) throw system_error("stat " + quote(path));
  if (S_ISDIR(info.st_mode)) throw usage_error(quote(path) + " is a directory").hint("give its files one by one");
  return {equals == std::string::npos ? fs::path(path).filename().native() : text.substr(0, equals),
          attempt("cannot read " + quote(path), [&] { return read_all(file.get(), kLargestFile); }),
          info.st_mode & 07777};
}

engine::Functions::Refill refill_by_process(const FunctionFlags& flags) {
  return [flags](const FunctionType& type) {
    std::vector<std::string> argv{"dsec", "fn", "pool", type.spec.name, "--fill", "--project", flags.project};
    for (const std::string& arg : flags.args) argv.insert(argv.end(), {"--arg", arg});
    std::vector<char*> pointers;
    for (std::string& word : argv) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    for (int fd = 0; fd < 3; ++fd) ::posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    pid_t pid = 0;
    // When it cannot be started the pool stays as it is, and the next call tries again.
    ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, pointers.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
  };
}

struct PoolThread::Shared {
  Shared(engine::Engine& engine, const engine::Home& home, const FunctionType& type) : pool(engine, home, type) {}

  void run() {
    for (std::unique_lock lock(mutex);;) {
      changed.wait(lock, [&] { return wanted || stop; });
      if (stop) return;
      wanted = false;
      lock.unlock();
      try {
        pool.fill(stop);
      } catch (const Error&) {
        // The next call makes its own sandbox, and tells why it cannot.
      }
      lock.lock();
    }
  }
  void wish() {
    const std::lock_guard lock(mutex);
    wanted = true;
    changed.notify_one();
  }

  engine::FunctionPool pool;
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> stop = false;
  bool wanted = false;
  std::thread thread;
};

PoolThread::PoolThread(engine::Engine& engine, const engine::Home& home, const FunctionType& type)
    : shared_(std::make_unique<Shared>(engine, home, type)) {
  shared_->thread = std::thread([shared = shared_.get()] { shared->run(); });
}

PoolThread::~PoolThread() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->changed.notify_one();
  shared_->thread.join();
}

engine::Functions::Refill PoolThread::refill() {
  return [shared = shared_.get()](const FunctionType&) { shared->wish(); };
}

Json to_json(const FunctionResult& result) {
  return {{"verdict", to_string(result.verdict)},
          {"stage", result.stage},
          {"detail", result.detail},
          {"stdout", bytes_to_json(result.output)},
          {"stderr", bytes_to_json(result.errors)},
          {"result", to_json(result.result)},
          {"time_us", result.time.count()},
          {"cpu_time_us", result.cpu_time.count()},
          {"memory_peak", result.memory_peak},
          {"from_pool", result.from_pool}};
}

}  // namespace dsec::cli
