#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/function_flags.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/root.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::cli {
namespace {

using std::chrono::steady_clock;

struct Options {
  FunctionFlags function;
  std::string input;
  std::vector<std::string> files, args;
  std::optional<std::uint64_t> calls, jobs;
};

struct Tally {
  std::mutex mutex;
  std::vector<double> pooled, made;  // milliseconds of the clock, as the caller waits
  std::map<std::string, std::uint64_t> verdicts;
};

void call_until_done(engine::Functions& functions, const FunctionType& type, const FunctionCall& request,
                     std::atomic<std::int64_t>& left, Tally& tally) {
  while (left.fetch_sub(1) > 0) {
    const auto begin = steady_clock::now();
    const FunctionResult result = functions.call(type, request);
    const std::chrono::duration<double, std::milli> taken = steady_clock::now() - begin;
    const std::lock_guard lock(tally.mutex);
    (result.from_pool ? tally.pooled : tally.made).push_back(taken.count());
    ++tally.verdicts[std::string(to_string(result.verdict))];
  }
}

Json percentiles(std::vector<double>& values) {
  if (values.empty()) return {{"calls", 0}};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {{"calls", values.size()}, {"median_ms", at(0.5)}, {"p95_ms", at(0.95)}, {"max_ms", values.back()}};
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string shown(const Json& side) {
  if (side["calls"] == 0) return "none";
  return std::to_string(side["calls"].get<std::uint64_t>()) + " calls, median " +
         fixed(side["median_ms"].get<double>(), 2) + " ms, 95 % within " + fixed(side["p95_ms"].get<double>(), 2) +
         " ms, longest " + fixed(side["max_ms"].get<double>(), 2) + " ms";
}

void run(const Options& options, Invocation& call) {
  require_root("fn bench");
  const FunctionType type = find_function(call, options.function, options.function.type);
  FunctionCall request{
      .input = options.input.empty() ? "" : read_file(options.input), .files = {}, .args = options.args};
  for (const std::string& file : options.files) request.files.push_back(read_function_file(file));
  const std::uint64_t jobs = options.jobs.value_or(std::max(1u, std::thread::hardware_concurrency()));
  engine::Engine& engine = call.wiring().local_engine();
  const engine::Home& home = call.wiring().home();
  const std::atomic<bool> never = false;
  engine::FunctionPool(engine, home, type).fill(never);

  Tally tally;
  std::atomic<std::int64_t> left = static_cast<std::int64_t>(options.calls.value_or(200));
  const auto begin = steady_clock::now();
  {
    PoolThread filler(engine, home, type);
    engine::Functions functions(engine, home, filler.refill());
    std::vector<std::thread> callers;
    for (std::uint64_t i = 0; i < jobs; ++i)
      callers.emplace_back([&] { call_until_done(functions, type, request, left, tally); });
    for (std::thread& caller : callers) caller.join();
  }
  // The removal of the last sandboxes is part of what calls cost.
  const std::chrono::duration<double> taken = steady_clock::now() - begin;
  const std::size_t calls = tally.pooled.size() + tally.made.size();
  const Json pooled = percentiles(tally.pooled), made = percentiles(tally.made);
  const double rate = static_cast<double>(calls) / taken.count();
  if (call.out().json())
    return call.out().json({{"calls", calls},
                            {"seconds", taken.count()},
                            {"calls_per_second", rate},
                            {"from_pool", pooled},
                            {"made_anew", made},
                            {"verdicts", tally.verdicts}});
  call.out().line(std::to_string(calls) + " calls by " + std::to_string(jobs) + " callers: " + fixed(rate, 0) +
                  " calls a second");
  call.out().line("from the pool: " + shown(pooled));
  call.out().line("made anew:     " + shown(made));
  for (const auto& [verdict, count] : tally.verdicts) call.out().line(verdict + ": " + std::to_string(count));
}

}  // namespace

void add_fn_bench(Command& fn) {
  auto options = std::make_shared<Options>();
  Command& verb = fn.verb("bench", "Time many calls");
  verb.reaches(Command::Reach::Local);
  verb.positional("TYPE", options->function.type, "Function of dsec.yaml");
  declare(verb, options->function);
  verb.option("--stdin", "FILE", options->input, "Standard input of each call (default: none)");
  verb.options("--file", "[NAME=]PATH", options->files, "Put a file into each call's workdir");
  verb.number("-n,--calls", options->calls, "How many (default: 200)");
  verb.number("-j,--jobs", options->jobs, "Callers at a time (default: one for each core)");
  verb.takes_command(options->args);
  verb.note("Fills the pool first, and tells calls that found a sandbox in it from those that had to make one.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
