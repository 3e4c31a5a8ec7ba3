#include "cli/finish.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/status_file.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

// What the record of a sandbox says when nobody ended it: no news.
constexpr std::string_view kOwnEnd = "its command ended";

// Empty when the exit code says all.
std::optional<Error> remark(const ExecResult& result, const std::string& program, const std::string& sandbox_reason) {
  using Cause = ExecResult::Cause;
  const std::string why = result.detail.empty() ? "" : result.detail;
  const auto error = [&](const std::string& what, const std::string& because) {
    Error made = failure(because.empty() ? what : because);
    if (!because.empty()) made.context(what);
    return made;
  };
  switch (result.cause) {
    case Cause::Exited:
      if (result.oom_kills == 0 || result.exit_code == 0) return std::nullopt;
      return error(std::to_string(result.oom_kills) + (result.oom_kills == 1 ? " process of " : " processes of ") +
                       quote(program) + (result.oom_kills == 1 ? " was" : " were") +
                       " killed: the sandbox ran out of memory",
                   describe_memory(result))
          .hint("a larger --memory");
    case Cause::Signalled:
      if (sandbox_reason.empty() || sandbox_reason == kOwnEnd) return std::nullopt;
      return error(quote(program) + " was ended with its sandbox", sandbox_reason);
    case Cause::TimedOut:
      return error(quote(program) + " ran out of time and was ended after " +
                       format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(result.duration)),
                   why);
    case Cause::OutOfMemory:
      return error(quote(program) + " was killed: the sandbox ran out of memory",
                   result.oom_kills ? describe_memory(result) : why)
          .hint("a larger --memory");
    case Cause::CannotExecute:
      return error("cannot execute " + quote(program), why);
    case Cause::NotFound:
      return error("there is no program " + quote(program) + " in the sandbox", why);
    case Cause::Lost:
      return error("how " + quote(program) + " ended is not known", why.empty() ? sandbox_reason : why);
    case Cause::Unknown:
      return error("the outcome of " + quote(program) + " is unknown", why);
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<engine::ExecStream> start_or_remove(engine::Engine& engine, const std::string& id,
                                                    const ExecSpec& spec) {
  try {
    return engine.exec(id, spec);
  } catch (const Error&) {
    const std::exception_ptr failed = std::current_exception();
    try {
      engine.remove(id, true);
    } catch (const Error&) {
      // The lease is left, so that gc finishes the work; the first failure is the one to tell.
    }
    std::rethrow_exception(failed);
  }
}

void finish(Invocation& call, const ExecResult& result, const std::vector<std::string>& argv,
            const std::string& sandbox_reason, const std::string& status_file) {
  const std::optional<Error> said = remark(result, argv.empty() ? "" : argv.front(), sandbox_reason);
  if (said && !call.out().json()) report(*said, Format::Text, std::cerr);
  write_status(status_file, result);
  call.exit_with(result.shell_code());
}

void tell_id(Output& out, const char* key, const std::string& id) {
  if (out.json()) return out.json({{key, id}});
  out.line(id);
}

}  // namespace dsec::cli
