// What sandboxes cost through the engine, in one process and with all that a sandbox has: lease, layers from the store,
// keeper, user namespace, control groups and limits, masks, capabilities, filter. DSEC_HOME names the store, in which
// LAYER has /bin/true.
//   bench_sandboxes create LAYER ROUNDS   create, /bin/true as the main command, its end, remove: us per round
//   bench_sandboxes create-network LAYER ROUNDS    the same with a network policy
//   bench_sandboxes stages LAYER ROUNDS   the same, medians of its steps: us of create, the command, remove
//   bench_sandboxes exec LAYER ROUNDS     /bin/true in a live sandbox, its streams captured: us per round
//   bench_sandboxes unrecorded LAYER ROUNDS   the same in a sandbox without a trajectory
//   bench_sandboxes named LAYER ROUNDS    the same under an op-id each: both of its records are on the disk
//   bench_sandboxes fleet LAYER COUNT     one of these in each of COUNT sandboxes, one after the other, and then all at
//                                         a time: us each, both ways
//   bench_sandboxes fork LAYER ROUNDS     what this process would pay itself: fork, /bin/true, its streams captured
//   bench_sandboxes idle LAYER COUNT      COUNT sandboxes that do nothing: KiB each, and per second (first and last
//   tenth)
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "core/base/child_process.h"
#include "core/base/files.h"
#include "tests/bench/bench_engine.h"

namespace {

using namespace dsec;
using namespace dsec::bench;

std::uint64_t available_kib() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    std::uint64_t value = 0;
    if (key == "MemAvailable:" && meminfo >> value) return value;
  }
  throw failure("/proc/meminfo has no MemAvailable");
}

class Bench : BenchEngine {
 public:
  using BenchEngine::BenchEngine;

  void create_with_policy(int rounds) {
    spec.network = NetworkMode::Policy;
    spec.network_plan.base.allow = {NetworkRule::parse("example.com"), NetworkRule::parse("*.example.org")};
    create(rounds);
  }

  void create(int rounds) {
    spec.made_for_command = true;
    round();  // what is made once for all
    const auto begun = Clock::now();
    for (int i = 0; i < rounds; ++i) round();
    std::printf("%.1f\n", us_since(begun) / rounds);
  }

  void stages(int rounds) {
    spec.made_for_command = true;
    round();
    std::vector<double> create, command, remove;
    for (int i = 0; i < rounds; ++i) {
      const auto begun = Clock::now();
      const std::string id = start();
      const auto created = Clock::now();
      run_true(id, true);
      const auto ended = Clock::now();
      engine.remove(id, true);
      create.push_back(us_between(begun, created));
      command.push_back(us_between(created, ended));
      remove.push_back(us_since(ended));
    }
    std::printf("%.0f %.0f %.0f\n", median(create), median(command), median(remove));
  }

  enum class Record { Nothing, Unnamed, Named };
  void exec(int rounds, Record record) {
    spec.record = record != Record::Nothing;
    const std::string id = start();
    run_true(id, false);
    const auto begun = Clock::now();
    for (int i = 0; i < rounds; ++i) run_true(id, false, record == Record::Named ? "op-" + std::to_string(i) : "");
    std::printf("%.1f\n", us_since(begun) / rounds);
    engine.remove(id, true);
  }

  void fleet(int count) {
    std::vector<std::string> ids;
    for (int i = 0; i < count; ++i) ids.push_back(start());
    for (const std::string& id : ids) run_true(id, false, "first");
    auto begun = Clock::now();
    for (const std::string& id : ids) run_true(id, false, "alone");
    const double alone = us_since(begun) / count;
    begun = Clock::now();
    std::vector<std::unique_ptr<engine::ExecStream>> streams;
    for (const std::string& id : ids) streams.push_back(begin(id, {"/bin/true"}, false, "together"));
    for (const auto& stream : streams) end(*stream);
    std::printf("%.1f %.1f\n", alone, us_since(begun) / count);
    streams.clear();
    for (const std::string& id : ids) engine.remove(id, true);
  }

  void fork(int rounds) {
    const std::string id = start();
    const auto begun = Clock::now();
    for (int i = 0; i < rounds; ++i) fork_true();
    std::printf("%.1f\n", us_since(begun) / rounds);
    engine.remove(id, true);
  }

  void idle(int count) {
    round();
    std::vector<std::string> ids;
    std::vector<double> times;
    const std::uint64_t before = available_kib();
    for (int i = 0; i < count; ++i) {
      const auto begun = Clock::now();
      ids.push_back(start());
      times.push_back(us_since(begun));
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
    for (const std::string& id : ids) engine.remove(id, true);
  }

 private:
  void round() {
    const std::string id = start();
    run_true(id, true);
    engine.remove(id, true);
  }

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
};

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 4 ? argv[1] : "";
  static const std::set<std::string> kKnown{"create", "create-network", "stages", "exec", "unrecorded",
                                            "named",  "fleet",          "fork",   "idle"};
  if (!kKnown.contains(what)) {
    std::fprintf(
        stderr,
        "usage: bench_sandboxes create|create-network|stages|exec|unrecorded|named|fleet|fork|idle LAYER COUNT\n");
    return 2;
  }
  try {
    Bench bench(argv[2]);
    const int count = std::stoi(argv[3]);
    if (what == "create") bench.create(count);
    if (what == "create-network") bench.create_with_policy(count);
    if (what == "stages") bench.stages(count);
    if (what == "exec") bench.exec(count, Bench::Record::Unnamed);
    if (what == "unrecorded") bench.exec(count, Bench::Record::Nothing);
    if (what == "named") bench.exec(count, Bench::Record::Named);
    if (what == "fleet") bench.fleet(count);
    if (what == "fork") bench.fork(count);
    if (what == "idle") bench.idle(count);
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const Error*>(&error);
    std::fprintf(stderr, "%s\n", own ? own->message().c_str() : error.what());
    return 1;
  }
  return 0;
}
