// What the life of sandboxes costs beyond running commands. DSEC_HOME names the store, in which LAYER has /bin/true and
// /bin/consumer (consumer.c).
//   bench_living replay LAYER COUNT    COUNT commands of 10 ms recorded, and the recording replayed: us of all, of the
//                                      commands themselves as their keeper saw it, and of giving them by hand
//   bench_living replay-true LAYER COUNT    the same with /bin/true
//   bench_living resume LAYER ROUNDS   pause and resume of a sandbox with one idle process: us of a resume, median
//   bench_living forks LAYER COUNT     MiB that were changed, MiB that COUNT forks take on the disk, ms of one
//   bench_living call LAYER ROUNDS     a function call of /bin/true, from a warm pool that is never empty: us, median
//   bench_living calls LAYER COUNT     as many as two callers get from a pool that is refilled meanwhile: per second
//   bench_living cpus LAYER ROUNDS     cores that an endless loop gets in ROUNDS seconds: allowed, used
//   bench_living cpu-time LAYER MS     a call that may use so much: ms allowed, ms used when it was ended
//   bench_living memory LAYER MIB      a call that may have so much: MiB allowed, and the most it was seen to get
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "cli/function_flags.h"
#include "core/base/files.h"
#include "core/engine/functions.h"
#include "core/engine/replay.h"
#include "tests/bench/bench_engine.h"

namespace {

using namespace dsec;
using namespace dsec::bench;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr double kMiB = 1 << 20;

class Bench : BenchEngine {
 public:
  using BenchEngine::BenchEngine;

  void replay(int count) { replay_of({"/bin/consumer", "work"}, count); }
  void replay_true(int count) { replay_of({"/bin/true"}, count); }

  void resume(int rounds) {
    const std::string id = start();
    const auto idle = begin(id, {"/bin/consumer", "wait"});
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      engine.pause(id);
      const auto begun = Clock::now();
      engine.resume(id);
      times.push_back(us_since(begun));
    }
    std::printf("%.0f\n", median(times));
    engine.remove(id, true);
  }

  void forks(int count) {
    constexpr int kFiles = 50;
    const std::string id = start();
    // What cannot be compressed, a file of 1 MiB at a time.
    const UniqueFd tar(::memfd_create("changes", MFD_CLOEXEC));
    write_changes(tar.get(), kFiles);
    engine.copy_in(id, "/", tar.get(), {.op_id = "", .recorded = false});
    const double before = disk_mib();
    const auto begun = Clock::now();
    const std::vector<engine::SandboxInfo> made = engine.fork(id, {.count = static_cast<std::size_t>(count)});
    const double each_ms = us_since(begun) / count / 1000;
    const double after = disk_mib();
    std::printf("%d %.1f %.1f\n", kFiles, after - before, each_ms);
    for (const engine::SandboxInfo& fork : made) engine.remove(fork.id, true);
    engine.remove(id, true);
  }

  void call(int rounds) {
    FunctionType type = type_of({"/bin/true"});
    type.spec.pool = 16;
    type.spec.warm_up = {"/bin/true"};
    engine::FunctionPool pool(engine, wiring.home(), type);
    const std::atomic<bool> never = false;
    std::vector<double> times;
    while (times.size() < static_cast<std::size_t>(rounds)) {
      pool.fill(never);
      for (unsigned i = 0; i < type.spec.pool; ++i) {
        // Its end waits until the sandbox of the call is gone, which otherwise goes beside the next call.
        engine::Functions functions(engine, wiring.home(), {});
        const auto begun = Clock::now();
        const FunctionResult result = functions.call(type, {});
        times.push_back(us_since(begun));
        if (result.verdict != Verdict::Ok || !result.from_pool) throw failure("not a warm call: " + result.detail);
      }
    }
    std::printf("%.0f\n", median(times));
  }

  void calls(int count) {
    FunctionType type = type_of({"/bin/true"});
    type.spec.pool = 32;
    engine::FunctionPool pool(engine, wiring.home(), type);
    const std::atomic<bool> never = false;
    pool.fill(never);
    std::atomic<int> left = count;
    std::atomic<bool> failed = false;
    const auto begun = Clock::now();
    {
      cli::PoolThread filler(engine, wiring.home(), type);
      engine::Functions functions(engine, wiring.home(), filler.refill());
      std::array<std::thread, 2> callers;
      for (std::thread& caller : callers)
        caller = std::thread([&] {
          while (left.fetch_sub(1) > 0)
            if (functions.call(type, {}).verdict != Verdict::Ok) failed = true;
        });
      for (std::thread& caller : callers) caller.join();
    }
    // Removing the last ones is part of what they cost.
    std::printf("%.0f\n", count / us_since(begun) * 1e6);
    pool.drain();
    if (failed) throw failure("a call failed");
  }

  void cpus(int seconds) {
    constexpr double kCores = 0.25;
    spec.limits.cpus = kCores;
    const std::string id = start();
    const auto spinning = begin(id, {"/bin/consumer", "spin"});
    // The first period may have begun before.
    std::this_thread::sleep_for(milliseconds(300));
    const std::uint64_t before = engine.stats(id).cpu_usec;
    const auto begun = Clock::now();
    std::this_thread::sleep_for(std::chrono::seconds(seconds));
    const double used = static_cast<double>(engine.stats(id).cpu_usec - before);
    std::printf("%.3f %.3f\n", kCores, used / us_since(begun));
    engine.remove(id, true);
  }

  void cpu_time(int ms) {
    FunctionType type = type_of({"/bin/consumer", "spin"});
    type.spec.run_limits.cpu_time = milliseconds(ms);
    type.spec.run_limits.time = std::chrono::minutes(1);
    engine::Functions functions(engine, wiring.home(), {});
    const FunctionResult result = functions.call(type, {});
    if (result.verdict != Verdict::TimeLimit) throw failure("the call was not ended: " + result.detail);
    std::printf("%d %.1f\n", ms, static_cast<double>(result.cpu_time.count()) / 1000);
  }

  void memory(int mib) {
    FunctionType type = type_of({"/bin/consumer", "touch"});
    type.sandbox.limits.memory = static_cast<std::uint64_t>(mib) << 20;
    engine::Functions functions(engine, wiring.home(), {});
    // It says how much it has after each step, until it is killed for it.
    const FunctionResult result = functions.call(type, {});
    if (result.verdict != Verdict::MemoryLimit) throw failure("the call was not ended: " + result.detail);
    std::printf("%d %.2f\n", mib, static_cast<double>(result.output.size()) * kStep / kMiB);
  }

 private:
  static constexpr double kStep = 64 << 10;  // that consumer.c says a byte for

  void replay_of(const std::vector<std::string>& argv, int count) {
    const std::string first = start(), by_hand = start();
    for (int i = 0; i < count; ++i) end(*begin(first, argv));
    end(*begin(by_hand, argv));
    auto begun = Clock::now();
    for (int i = 0; i < count; ++i) end(*begin(by_hand, argv));
    const double by_hand_us = us_since(begun);

    begun = Clock::now();
    const engine::Trajectory trajectory = engine.trajectory(first);
    const double read_us = us_since(begun);
    const std::string again = engine.create(engine::replay_spec(trajectory.header)).id;
    end(*begin(again, argv));
    begun = Clock::now();
    const engine::ReplayReport report = engine::replay(engine, again, trajectory, engine::Normaliser(), {});
    const double replayed_us = us_since(begun) + read_us;
    if (report.same != static_cast<std::size_t>(count)) throw failure("the replay differs");
    microseconds own{};
    const engine::Trajectory replayed = engine.trajectory(again);
    for (std::size_t i = 1; i < replayed.operations.size(); ++i) own += exec_result_of(replayed.operations[i]).duration;
    std::printf("%.0f %lld %.0f\n", replayed_us, static_cast<long long>(own.count()), by_hand_us);
    for (const std::string& id : {first, by_hand, again}) engine.remove(id, true);
  }

  FunctionType type_of(std::vector<std::string> command) const {
    FunctionType type;
    type.spec.name = "bench";
    type.spec.command = std::move(command);
    type.spec.run_limits.time = std::chrono::minutes(1);
    type.sandbox = spec;
    return type;
  }

  static void write_changes(int fd, int files) {
    std::minstd_rand random(1);
    std::string content(1 << 20, '\0');
    for (int i = 0; i < files; ++i) {
      for (char& c : content) c = static_cast<char>(random() >> 16);
      std::array<char, 512> header{};
      std::snprintf(header.data(), header.size(), "changes-%d", i);
      std::snprintf(header.data() + 100, 60, "0000644%c0000000%c0000000%c%011o%c00000000000%c        ", 0, 0, 0,
                    1u << 20, 0, 0);
      header[156] = '0';
      std::snprintf(header.data() + 257, 10, "ustar%c00", 0);
      unsigned sum = 0;
      for (const char c : header) sum += static_cast<unsigned char>(c);
      std::snprintf(header.data() + 148, 8, "%06o", sum);
      write_all(fd, {header.data(), header.size()});
      write_all(fd, content);
    }
    write_all(fd, std::string(1024, '\0'));
    if (::lseek(fd, 0, SEEK_SET) != 0) throw system_error("rewind");
  }

  // Of all files of the home, as the disk counts them.
  double disk_mib() {
    double bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(wiring.home().root())) {
      struct stat info = {};
      if (::lstat(entry.path().c_str(), &info) == 0) bytes += static_cast<double>(info.st_blocks) * 512;
    }
    return bytes / kMiB;
  }
};

}  // namespace

int main(int argc, char** argv) {
  static const std::map<std::string, void (Bench::*)(int)> kKnown{
      {"replay", &Bench::replay}, {"replay-true", &Bench::replay_true},
      {"resume", &Bench::resume}, {"forks", &Bench::forks},
      {"call", &Bench::call},     {"calls", &Bench::calls},
      {"cpus", &Bench::cpus},     {"cpu-time", &Bench::cpu_time},
      {"memory", &Bench::memory}};
  const auto found = argc == 4 ? kKnown.find(argv[1]) : kKnown.end();
  if (found == kKnown.end()) {
    std::fprintf(stderr,
                 "usage: bench_living replay|replay-true|resume|forks|call|calls|cpus|cpu-time|memory LAYER COUNT\n");
    return 2;
  }
  try {
    Bench bench(argv[2]);
    (bench.*found->second)(std::stoi(argv[3]));
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const Error*>(&error);
    std::fprintf(stderr, "%s\n", own ? own->message().c_str() : error.what());
    return 1;
  }
  return 0;
}
