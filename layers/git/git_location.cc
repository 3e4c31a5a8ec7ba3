#include <algorithm>
#include <array>
#include <system_error>

#include "core/base/error.h"
#include "layers/git/git_source.h"
#include "layers/git/remote.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

constexpr std::array kHistories{std::pair{GitHistory::None, std::string_view("none")},
                                std::pair{GitHistory::Past, std::string_view("past")},
                                std::pair{GitHistory::Full, std::string_view("full")}};

// From where on an '@' begins the revision: not inside "ssh://user@host" or "user@host:path".
std::size_t revision_may_begin(std::string_view text) {
  if (const auto scheme = text.find("://"); scheme != std::string_view::npos)
    return std::min(text.find('/', scheme + 3), text.size());
  if (const auto colon = scp_colon(text)) return *colon;
  return 0;
}

// Splits "PATH@REV". Both may hold an '@' themselves, so the longest PATH that is there decides.
void split_path(std::string_view text, const fs::path& base, GitRequest& request) {
  std::error_code ignored;
  for (auto at = text.size(); at != std::string_view::npos;
       at = at ? text.rfind('@', at - 1) : std::string_view::npos) {
    const fs::path place = base / local_path(text.substr(0, at));
    if (at == 0 || !fs::exists(place, ignored)) continue;
    request.location = place;
    if (at < text.size()) request.revision = text.substr(at + 1);
    return;
  }
  // It is not there, as the message will say.
  const auto at = text.rfind('@');
  request.location = text.empty() || at == 0 ? fs::path() : base / local_path(text.substr(0, at));
  if (at != std::string_view::npos) request.revision = text.substr(at + 1);
}

void split_url(std::string_view text, GitRequest& request) {
  const auto at = text.rfind('@');
  request.location = text;
  if (at == std::string_view::npos || at < revision_may_begin(text)) return;
  request.location = text.substr(0, at);
  request.revision = text.substr(at + 1);
}

void take_options(std::string_view options, GitRequest& request) {
  while (!options.empty()) {
    const std::string_view option = options.substr(0, options.find('&'));
    options.remove_prefix(std::min(option.size() + 1, options.size()));
    if (!option.starts_with("history="))
      throw usage_error("the source git: has no option " + quote(option))
          .hint("?history=none, ?history=past or ?history=full");
    request.history = parse_git_history(option.substr(8));
  }
}

}  // namespace

GitHistory parse_git_history(std::string_view text) {
  for (const auto& [history, name] : kHistories)
    if (name == text) return history;
  throw usage_error("a git history is none, past or full, not " + quote(text));
}

std::string_view to_string(GitHistory history) {
  for (const auto& [value, name] : kHistories)
    if (value == history) return name;
  return "";
}

GitRequest GitRequest::parse(std::string_view text, const fs::path& base) {
  GitRequest request;
  // Options stand behind the last '?', and only when they look like ours: a path or a URL may hold a '?' as well.
  if (const auto mark = text.rfind('?');
      mark != std::string_view::npos && text.find('=', mark) != std::string_view::npos) {
    take_options(text.substr(mark + 1), request);
    text = text.substr(0, mark);
  }
  if (is_remote(text)) {
    split_url(text, request);
  } else {
    split_path(text, base, request);
  }
  if (request.location.empty())
    throw usage_error("the source git: names no repository").hint("git:PATH@REV or git:URL@REV");
  if (request.revision.empty()) throw usage_error("the source git:" + request.location + "@ names no revision");
  return request;
}

}  // namespace dsec::layers
