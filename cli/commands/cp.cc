#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"
#include "runners/container/files.h"

namespace dsec::cli {
namespace {

namespace fs = std::filesystem;
using engine::Engine;
using runners::SandboxFiles;

struct Options {
  std::string from, to;
  bool archive = false;
  std::string op_id;
};

/// One end: a path of a sandbox, a path here, or a stream.
struct End {
  std::string sandbox, path;
  bool stream() const { return sandbox.empty() && path == "-"; }
};

End parse_end(const std::string& text) {
  // A colon after a slash belongs to a name: ./a:b.
  const auto colon = text.find(':');
  if (colon == std::string::npos || colon == 0 || text.find('/') < colon) {
    if (text == "-") return {{}, text};
    return {{}, fs::absolute(text).native()};
  }
  std::string path = text.substr(colon + 1);
  if (path.empty()) throw usage_error(quote(text) + " names no path").hint("write SANDBOX:/PATH");
  return {text.substr(0, colon), path.front() == '/' ? path : '/' + path};
}

enum class Kind { Missing, File, Directory };

bool ends_with(const Error& error, const char* name) { return error.chain().back().ends_with(name); }

bool is_missing(const Error& error) { return ends_with(error, "(ENOENT)") || ends_with(error, "(ENOTDIR)"); }

/// A tar stream from `write` to `read`. Of two failures the one that caused the other is thrown: when the reader has
/// gone, whatever happens to the writer is its doing.
void pass_stream(const std::function<void(int)>& write, const std::function<void(int)>& read) {
  auto [reading, writing] = make_pipe();
  std::exception_ptr write_failed, read_failed;
  std::thread writer([&write, &write_failed, fd = std::move(writing)]() mutable {
    // When nobody reads any more, that is an error to tell, not the end of dsec.
    sigset_t pipe_signal;
    ::sigemptyset(&pipe_signal);
    ::sigaddset(&pipe_signal, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
    try {
      write(fd.get());
    } catch (const Error& error) {
      if (!ends_with(error, "(EPIPE)")) write_failed = std::current_exception();
    } catch (...) {
      write_failed = std::current_exception();
    }
    fd.reset();
  });
  try {
    read(reading.get());
  } catch (...) {
    read_failed = std::current_exception();
  }
  reading.reset();
  writer.join();
  if (write_failed) std::rethrow_exception(write_failed);
  if (read_failed) std::rethrow_exception(read_failed);
}

/// Begins to copy and stops: the engine has no other word for what lies at a path.
bool is_there(Engine& engine, const std::string& sandbox, const std::string& path) {
  try {
    pass_stream([&](int fd) { engine.copy_out(sandbox, path, fd, {.recorded = false}); },
                [](int fd) {
                  char first = 0;
                  (void)!::read(fd, &first, 1);
                });
    return true;
  } catch (const Error& error) {
    if (is_missing(error)) return false;
    throw;
  }
}

Kind kind_of(Engine& engine, const End& end) {
  if (!end.sandbox.empty()) {
    if (is_there(engine, end.sandbox, end.path + '/')) return Kind::Directory;
    return !end.path.ends_with('/') && is_there(engine, end.sandbox, end.path) ? Kind::File : Kind::Missing;
  }
  struct stat info {};
  if (::stat(end.path.c_str(), &info) == 0) return S_ISDIR(info.st_mode) ? Kind::Directory : Kind::File;
  if (::lstat(end.path.c_str(), &info) == 0) return Kind::File;
  if (errno != ENOENT && errno != ENOTDIR) throw system_error("stat " + quote(end.path));
  return Kind::Missing;
}

/// The directory to unpack into, and what the top entry is called there; empty: as in the stream.
std::pair<std::string, std::string> destination(const End& from, Kind source, const End& to, Kind target) {
  if (target == Kind::Directory) return {to.path, {}};
  if (source == Kind::Directory && target == Kind::File)
    throw usage_error(quote(to.path) + " is a file, and " + quote(from.path) + " a directory");
  if (source == Kind::File && to.path.ends_with('/')) throw usage_error("there is no directory " + quote(to.path));
  fs::path place = to.path;
  if (!place.has_filename()) place = place.parent_path();
  return {place.parent_path().native(), place.filename().native()};
}

/// A copy that is repeated goes where the first of its name went: that may have made the place, or the sandbox be gone.
Kind kind_of_target(Engine& engine, const End& to, const std::string& op_id) {
  const std::optional<Operation> first = engine.recorded(to.sandbox, op_id);
  if (!first || first->kind != "write") return kind_of(engine, to);
  const Json request = parse_json(first->request, "of the record");
  return bytes_of_json(request.at("path")) == to.path ? Kind::Directory : Kind::Missing;
}

void copy_here(Engine& engine, const End& from, const End& to, const SandboxFiles& here, const Options& asked) {
  const Kind target = kind_of(engine, to);
  Kind source = target == Kind::File ? Kind::File : Kind::Directory;
  // Its own link, as it is, unless the path says otherwise. What is recorded need not be there any more, and its kind
  // was right for its place.
  if (!engine.recorded(from.sandbox, asked.op_id))
    source = is_there(engine, from.sandbox, from.path + '/') ? Kind::Directory : Kind::File;
  const auto [directory, name] = destination(from, source, to, target);
  runners::UnpackOptions options{.name = name, .owner = {}};
  if (!asked.archive) options.owner = ::geteuid();
  pass_stream([&](int fd) { engine.copy_out(from.sandbox, from.path, fd, operation_context(asked.op_id)); },
              [&, into = directory](int fd) { runners::copy_in(here, into, fd, options); });
}

void copy_there(Engine& engine, const End& from, const End& to, const SandboxFiles& here, const Options& asked) {
  const Kind source = kind_of(engine, from);
  if (source == Kind::Missing) throw usage_error("there is no " + quote(from.path));
  const auto [directory, name] = destination(from, source, to, kind_of_target(engine, to, asked.op_id));
  runners::PackOptions options{.name = name, .owner = {}};
  if (!asked.archive) options.owner = 0;
  pass_stream([&](int fd) { runners::copy_out(here, from.path, fd, options); },
              [&, into = directory](int fd) { engine.copy_in(to.sandbox, into, fd, operation_context(asked.op_id)); });
}

void run(const Options& options, Invocation& call) {
  const End from = parse_end(options.from), to = parse_end(options.to);
  if (from.sandbox.empty() == to.sandbox.empty())
    throw usage_error("exactly one of both has to be in a sandbox")
        .hint("write it as SANDBOX:PATH, and a path here with a colon as ./NAME");
  Engine& engine = call.wiring().engine();
  if (to.stream()) {
    if (::isatty(STDOUT_FILENO))
      throw usage_error("a tar stream does not go to a terminal").hint("dsec cp SANDBOX:PATH - | tar tv");
    return engine.copy_out(from.sandbox, from.path, STDOUT_FILENO, operation_context(options.op_id));
  }
  if (from.stream()) return engine.copy_in(to.sandbox, to.path, STDIN_FILENO, operation_context(options.op_id));
  const UniqueFd root = open_file("/", O_PATH | O_DIRECTORY);
  const SandboxFiles here{root.get(), runners::kUnmappedIds};
  if (to.sandbox.empty()) {
    copy_here(engine, from, to, here, options);
  } else {
    copy_there(engine, from, to, here, options);
  }
}

}  // namespace

void add_cp(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("cp", "Copy files into a sandbox or out of it");
  verb.reaches(Command::Reach::Context);
  verb.positional("FROM", options->from, "SANDBOX:PATH, a path here, or - for a tar stream");
  verb.positional("TO", options->to, "The same; one of both is in a sandbox");
  verb.flag("-a,--archive", options->archive, "Keep owners; else all belongs to root inside, or to you here");
  declare_op_id(verb, options->op_id);
  verb.note(
      "A directory is copied into TO when that exists, and becomes TO otherwise; DIRECTORY/. stands for what is in it. "
      "Links are copied as links. The sandbox may run or have ended.");
  verb.example("dsec cp web:/var/log/app.log .");
  verb.example("dsec cp fixtures/. web:/workspace/fixtures");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
