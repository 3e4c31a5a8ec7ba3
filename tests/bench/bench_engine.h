#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/engine/engine.h"
#include "core/engine/layer_store.h"
#include "core/engine/runner.h"

namespace dsec::bench {

using Clock = std::chrono::steady_clock;

inline double us_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - start).count();
}
inline double us_since(Clock::time_point start) { return us_between(start, Clock::now()); }

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// The engine of the home that DSEC_HOME names, and a sandbox of one layer with the usual limits. What sandboxes share
/// is given back at the end.
class BenchEngine {
 public:
  explicit BenchEngine(const std::string& layer) : engine(wiring.engine()) {
    spec.layers = {wiring.layer_store().get(LayerRef::parse(layer)).digest};
    spec.limits.memory = 256u << 20;
    spec.limits.pids = 128;
    // A real-time process, which measures through the noise of a busy machine, cannot be limited.
    if (!std::getenv("DSEC_BENCH_WITHOUT_CPU_LIMIT")) spec.limits.cpus = 2;
  }
  BenchEngine(const BenchEngine&) = delete;
  ~BenchEngine() {
    for (const auto& [name, runner] : wiring.runners()) runner.get().release_shared();
  }

  std::string start() { return engine.create(spec).id; }

  std::unique_ptr<engine::ExecStream> begin(const std::string& id, std::vector<std::string> argv, bool main = false,
                                            const std::string& op_id = "") {
    ExecSpec command;
    command.argv = std::move(argv);
    command.main = main;
    command.operation.op_id = op_id;
    return engine.exec(id, command);
  }
  /// Reads to its end; throws Error when that was no success.
  static void end(engine::ExecStream& stream) {
    while (const auto event = stream.next()) {
      if (event->kind != engine::ExecEvent::Kind::Exited) continue;
      if (event->result.shell_code() != 0)
        throw failure("the command ended with " + std::to_string(event->result.shell_code()) + " " +
                      event->result.detail);
      return;
    }
  }
  void run_true(const std::string& id, bool main = false, const std::string& op_id = "") {
    end(*begin(id, {"/bin/true"}, main, op_id));
  }

  cli::Wiring wiring;
  engine::Engine& engine;
  SandboxSpec spec;
};

}  // namespace dsec::bench
