#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/engine/engine.h"

namespace dsec::engine {

/// A recorded command that runs again, with the recorded standard input.
class CommandAgain {
 public:
  struct Output {
    std::string out, err;
    std::string both;  ///< in the order in which it came
  };

  /// Gives `input` to the stream, in the background where it is long; does nothing with it unless `open_stdin`.
  CommandAgain(std::unique_ptr<ExecStream> stream, std::string input, bool open_stdin);
  ~CommandAgain();
  CommandAgain(const CommandAgain&) = delete;
  CommandAgain& operator=(const CommandAgain&) = delete;

  const std::string& exec_id() const { return stream_->exec_id(); }
  /// Reads to its end. Of each stream no more than a limit is held.
  ExecResult finish(Output& output);

 private:
  void give_input();
  const std::string input_;
  std::unique_ptr<ExecStream> stream_;
  std::thread writer_;
};

}  // namespace dsec::engine
