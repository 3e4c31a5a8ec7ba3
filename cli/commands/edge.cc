#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/remote/address.h"
#include "core/remote/edge/edge.h"
#include "core/remote/token.h"

namespace dsec::cli {
namespace {

constexpr std::chrono::milliseconds kDrainTime{30'000};

struct Options {
  std::string listen, name, token_file;
  std::optional<std::chrono::milliseconds> drain;
  bool quiet = false;
};

// Each stream takes some descriptors; the soft limit is for programs that use select(2).
void raise_descriptors() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void run(const Options& options, Invocation& call) {
  require_root("edge");
  remote::EdgeOptions edge{.name = options.name, .token = {}, .limits = {}, .log = {}};
  if (!options.token_file.empty()) edge.token = remote::read_token(options.token_file);
  if (!edge.token && remote::needs_token(options.listen))
    throw usage_error("whoever can connect to " + quote(options.listen) + " could do anything on this host")
        .hint("--token-file FILE, with a line such as openssl rand -hex 32 prints")
        .hint("--listen unix:/PATH, which only its owner can connect to");
  if (!options.quiet)
    edge.log = [mutex = std::make_shared<std::mutex>()](const std::string& line) {
      const std::lock_guard lock(*mutex);
      std::fprintf(stderr, "%s\n", line.c_str());
    };
  // In every thread that is started from here on: they are for sigwait alone.
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signo : {SIGTERM, SIGINT}) ::sigaddset(&ends, signo);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  raise_descriptors();

  engine::Engine& engine = call.wiring().local_engine();
  std::string bound;
  UniqueFd listener = remote::listen_for_clients(options.listen, bound);
  remote::Edge served(engine, std::move(listener), std::move(edge));
  if (call.out().json())
    call.out().json_line({{"url", bound}, {"name", options.name}});
  else
    call.out().line("listening at " + bound);
  int signo = 0;
  while (::sigwait(&ends, &signo) != 0) {
  }
  // What still waits for a sandbox may do so for ever. It leaves no more than a kill would, which gc removes.
  if (!served.drain(options.drain.value_or(kDrainTime))) ::_exit(0);
}

}  // namespace

void add_edge(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("edge", "Let others work on this host's sandboxes, over HTTP");
  verb.option("--listen", "ADDRESS", options->listen, "unix:/PATH, or ADDRESS:PORT of the loopback");
  verb.option("--name", "NAME", options->name, "Name of this edge, for health, metrics and logs");
  verb.option("--token-file", "FILE", options->token_file, "What clients must say; needed for ADDRESS:PORT");
  verb.duration("--drain", options->drain, "How long what was asked may take after SIGTERM (default: 30s)");
  verb.flag("-q,--quiet", options->quiet, "Write no line for each request to standard error");
  verb.note(
      "Runs until SIGTERM or SIGINT, and then answers what was asked. Sandboxes and their commands go on without it; "
      "another edge, or dsec on this host, finds them.");
  verb.example("dsec edge --listen unix:/run/dsec/edge.sock --name lab");
  verb.runs([options](Invocation& call) {
    if (options->listen.empty()) throw usage_error("--listen is missing").hint("--listen unix:/run/dsec/edge.sock");
    if (options->name.empty()) throw usage_error("--name is missing").hint("--name edge-1");
    run(*options, call);
  });
}

}  // namespace dsec::cli
