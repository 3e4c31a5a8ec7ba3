// What sandboxes cost through the runner, in one process and with all that a sandbox has: lease, keeper, user
// namespace, control groups and limits, masks, capabilities, filter.
//   bench_sandboxes create TREE HOME ROUNDS    lease, start, /bin/true as the main command, end, reclaim: us per round
//   bench_sandboxes create-network TREE HOME ROUNDS    the same with a network policy
//   bench_sandboxes exec TREE HOME ROUNDS      /bin/true in a live sandbox, its streams captured: us per round
//   bench_sandboxes fork TREE HOME ROUNDS      what this process would pay itself: fork, /bin/true, its streams
//   captured bench_sandboxes idle TREE HOME COUNT       COUNT sandboxes that do nothing: KiB each, per second (first
//   and last
//                                              tenth), and what is left afterwards
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "core/engine/home.h"
#include "core/engine/lease.h"
#include "core/engine/runner.h"
#include "core/engine/sandbox_id.h"
#include "runners/container/container_runner.h"

namespace {

using namespace dsec;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

std::uint64_t available_kib() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    std::uint64_t value = 0;
    if (key == "MemAvailable:" && meminfo >> value) return value;
  }
  throw failure("/proc/meminfo has no MemAvailable");
}

class Bench {
 public:
  Bench(fs::path tree, const fs::path& home)
      : tree_(std::move(tree)), home_(engine::Home::open(home)), runner_(runners::make_container_runner(home_)) {}

  fs::path start() {
    SandboxSpec spec;
    spec.limits.memory = 256u << 20;
    spec.limits.pids = 128;
    // A real-time process, which measures through the noise of a busy machine, cannot be limited.
    if (!std::getenv("DSEC_BENCH_WITHOUT_CPU_LIMIT")) spec.limits.cpus = 2;
    if (policy_) {
      spec.network = NetworkMode::Policy;
      spec.network_plan.base.allow = {NetworkRule::parse("example.com"), NetworkRule::parse("*.example.org")};
    }
    const std::string id = home_.host_id() + engine::random_id(16);
    engine::RunnerRequest request;
    request.id = id;
    request.directory = home_.sandboxes() / id;
    request.spec = spec;
    make_directories(request.directory, 0700);
    engine::Lease{id, engine::ProcessIdentity::self(), std::chrono::system_clock::now(), spec}.write(request.directory);
    request.stack.lowers.push_back(clone_mount(tree_));
    fs::path directory = request.directory;
    runner_->check(spec);
    runner_->start(std::move(request));
    return directory;
  }

  void run_true(const fs::path& directory, bool main) {
    ExecSpec spec;
    spec.argv = {"/bin/true"};
    spec.main = main;
    const auto stream = runner_->exec(directory, spec);
    while (const auto event = stream->next()) {
      if (event->kind != engine::ExecEvent::Kind::Exited) continue;
      if (event->result.cause != ExecResult::Cause::Exited || event->result.exit_code != 0)
        throw failure("/bin/true failed: " + event->result.detail);
      return;
    }
  }

  void remove(const fs::path& directory) {
    runner_->reclaim(directory);
    remove_tree(directory);
  }

  void create_with_policy(int rounds) {
    policy_ = true;
    create(rounds);
  }

  void create(int rounds) {
    remove(start());  // what is made once for all
    const auto begin = Clock::now();
    for (int round = 0; round < rounds; ++round) {
      const fs::path directory = start();
      run_true(directory, true);
      runner_->wait(directory, std::nullopt);
      remove(directory);
    }
    std::printf("%.1f\n", us_since(begin) / rounds);
    runner_->release_shared();
  }

  void exec(int rounds) {
    const fs::path directory = start();
    run_true(directory, false);
    const auto begin = Clock::now();
    for (int round = 0; round < rounds; ++round) run_true(directory, false);
    std::printf("%.1f\n", us_since(begin) / rounds);
    remove(directory);
    runner_->release_shared();
  }

  void fork(int rounds) {
    const fs::path directory = start();
    const auto begin = Clock::now();
    for (int round = 0; round < rounds; ++round) fork_true();
    std::printf("%.1f\n", us_since(begin) / rounds);
    remove(directory);
    runner_->release_shared();
  }

  void idle(int count) {
    remove(start());
    std::vector<fs::path> directories;
    std::vector<double> times;
    const std::uint64_t before = available_kib();
    for (int i = 0; i < count; ++i) {
      const auto begin = Clock::now();
      directories.push_back(start());
      times.push_back(us_since(begin));
    }
    const std::uint64_t after = available_kib();
    const auto rate = [&](std::size_t from, std::size_t to) {
      double sum = 0;
      for (std::size_t i = from; i < to; ++i) sum += times[i];
      return 1e6 * static_cast<double>(to - from) / sum;
    };
    const std::size_t tenth = std::max<std::size_t>(times.size() / 10, 1);
    std::printf("%.0f %.0f %.0f\n",
                (static_cast<double>(before) - static_cast<double>(after)) / static_cast<double>(count), rate(0, tenth),
                rate(times.size() - tenth, times.size()));
    for (const fs::path& directory : directories) remove(directory);
    runner_->release_shared();
  }

 private:
  static void fork_true() {
    auto [out, out_end] = make_pipe();
    auto [err, err_end] = make_pipe();
    const pid_t child = ::fork();
    if (child < 0) throw system_error("fork");
    if (child == 0) {
      ::dup2(out_end.get(), 1);
      ::dup2(err_end.get(), 2);
      char* const argv[] = {const_cast<char*>("/bin/true"), nullptr};
      char* const env[] = {nullptr};
      ::execve(argv[0], argv, env);
      ::_exit(127);
    }
    out_end.reset();
    err_end.reset();
    if (!read_all(out.get()).empty() || !read_all(err.get()).empty()) throw failure("/bin/true says something");
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) throw failure("/bin/true failed");
  }

  bool policy_ = false;
  const fs::path tree_;
  const engine::Home home_;
  const std::unique_ptr<engine::Runner> runner_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 5 ? argv[1] : "";
  if (what != "create" && what != "create-network" && what != "exec" && what != "fork" && what != "idle") {
    std::fprintf(stderr, "usage: bench_sandboxes create|create-network|exec|fork|idle TREE HOME COUNT\n");
    return 2;
  }
  try {
    Bench bench(argv[2], argv[3]);
    const int count = std::stoi(argv[4]);
    if (what == "create") bench.create(count);
    if (what == "create-network") bench.create_with_policy(count);
    if (what == "exec") bench.exec(count);
    if (what == "fork") bench.fork(count);
    if (what == "idle") bench.idle(count);
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const Error*>(&error);
    std::fprintf(stderr, "%s\n", own ? own->message().c_str() : error.what());
    return 1;
  }
  return 0;
}
