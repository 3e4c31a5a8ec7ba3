#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "core/http/client.h"

namespace dsec::http {

/// Why there is no whole answer.
enum class Failure {
  None,         ///< there is one
  Unreachable,  ///< no connection: may pass, but a wrong address never does
  Broken,       ///< the connection broke or stalled; trying again may help
  Final,        ///< trying again does not help
  Cancelled,
};

struct Outcome {
  Answer answer;
  Failure failure = Failure::None;
  std::string reason;  ///< of a failure: "connect: Connection refused (ECONNREFUSED)"
  std::string hint;    ///< may be empty
};

/// One handle of libcurl, with the connections that it keeps alive. One thread at a time.
class Connection {
 public:
  Connection();
  ~Connection();
  /// One request and one answer, as they are: nothing is followed or repeated. Passes on what the download's sink
  /// throws.
  Outcome exchange(const Request& request, Download* download, const HostTrust& trust, const ClientOptions& options,
                   const std::atomic<bool>& cancelled);

 private:
  struct State;
  struct Handle;
  void prepare(State& state, const HostTrust& trust);
  void judge(State& state, int code);

  std::unique_ptr<Handle> handle_;
};

}  // namespace dsec::http
