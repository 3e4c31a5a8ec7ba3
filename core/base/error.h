#pragma once

#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsec {

/// What a failure means to the caller; cli/report.cc maps it to an exit code.
enum class ErrorKind {
  Usage,     ///< the request itself is wrong: flags, references, files with a wrong content
  Failed,    ///< the request is right, but it could not be done
  Internal,  ///< dsec contradicted itself
};

/// One failure as a person should read it: the attempt, its causes, the way out.
/// Thrown by value, caught by const reference; the text of every link is one line without a full stop.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string cause) : kind_(kind), chain_{std::move(cause)} {}

  /// Adds what was being attempted when the present chain happened.
  Error& context(std::string attempt) & {
    chain_.insert(chain_.begin(), std::move(attempt));
    return *this;
  }
  /// Adds an action that would mend it.
  Error& hint(std::string action) & {
    hints_.push_back(std::move(action));
    return *this;
  }
  Error&& context(std::string attempt) && { return std::move(context(std::move(attempt))); }
  Error&& hint(std::string action) && { return std::move(hint(std::move(action))); }

  ErrorKind kind() const noexcept { return kind_; }
  /// Outermost attempt first.
  std::span<const std::string> chain() const noexcept { return chain_; }
  std::span<const std::string> hints() const noexcept { return hints_; }
  const char* what() const noexcept override { return chain_.front().c_str(); }
  /// The chain in one line, joined by ": ", for logs and for tests.
  std::string message() const;

 private:
  ErrorKind kind_;
  std::vector<std::string> chain_, hints_;
};

/// "No such file or directory (ENOENT)".
std::string errno_text(int error_number);

/// A failed system call: "open '/x': No such file or directory (ENOENT)". Reads errno when error_number is -1, so call
/// it before anything else can change errno.
Error system_error(std::string attempt, int error_number = -1);

/// Shorthands for the two usual kinds.
Error usage_error(std::string cause);
Error failure(std::string cause);

/// Runs `action`; an Error that leaves it gains `what` as its context.
template <typename Action>
decltype(auto) attempt(std::string_view what, Action&& action) {
  try {
    return std::forward<Action>(action)();
  } catch (Error& error) {
    error.context(std::string(what));
    throw;
  }
}

/// 'text' with control characters and bytes that are no UTF-8 escaped as \xNN, between single quotes: any byte string
/// from outside may stand in a message.
std::string quote(std::string_view text);

/// The candidate names nearest to `wrong` (edit distance), best first, at most `limit`; empty when none is near.
std::vector<std::string> nearest_names(std::string_view wrong, std::span<const std::string> candidates,
                                       std::size_t limit = 3);

}  // namespace dsec
