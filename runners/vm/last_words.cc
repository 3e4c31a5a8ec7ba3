#include "runners/vm/last_words.h"

#include <fcntl.h>
#include <unistd.h>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

constexpr std::size_t kHeard = 4096, kTold = 400;

}  // namespace

LastWords::LastWords(UniqueFd pipe) : pipe_(std::move(pipe)) {
  if (::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK) != 0) throw system_error("make a pipe");
}

void LastWords::hear() {
  char chunk[4096];
  for (ssize_t got = 0; (got = ::read(pipe_.get(), chunk, sizeof chunk)) > 0;) {
    heard_.append(chunk, static_cast<std::size_t>(got));
    if (heard_.size() > kHeard) heard_.erase(0, heard_.size() - kHeard);
  }
}

std::string LastWords::text() const {
  std::string text;
  for (const char c : heard_)
    if (c != '\r') text += c == '\n' ? '|' : c;
  while (!text.empty() && (text.back() == '|' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return text.substr(text.size() > kTold ? text.size() - kTold : 0);
}

}  // namespace dsec::runners
