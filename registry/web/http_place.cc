#include "registry/web/http_place.h"

#include <algorithm>

#include "core/base/error.h"
#include "registry/layout/catalogue.h"
#include "registry/layout/layout.h"
#include "registry/oci/auth.h"
#include "registry/oci/challenge.h"

namespace dsec::registry {

HttpPlace::HttpPlace(const Config& config, http::ClientOptions options, std::string base)
    : access_(config, std::move(options)), base_(std::move(base)) {
  try {
    check_marker();
  } catch (Error& error) {
    if (error.kind() == ErrorKind::Usage && error.hints().empty())
      error.hint("the URL under which a web server shows the directory of a registry, dsec-registry(5)");
    throw;
  }
}

http::Url HttpPlace::url(const std::string& name) const { return http::Url::parse(base_ + "/" + escaped_name(name)); }

std::string HttpPlace::log_in(const http::Request& request, const http::Answer& answer) const {
  const std::string* asked = answer.header("WWW-Authenticate");
  const std::vector<Challenge> ways = asked ? parse_challenges(*asked) : std::vector<Challenge>();
  const bool by_password =
      std::any_of(ways.begin(), ways.end(), [](const Challenge& way) { return way.scheme == "basic"; });
  if (!by_password || !answer.url.same_origin(request.url)) return "";
  const auto login = credentials_.find(request.url.authority(), "");
  return login && !login->user.empty() ? basic_authorization(*login) : "";
}

http::Answer HttpPlace::send(http::Request request, http::Download* download) const {
  {
    const std::lock_guard guard(mutex_);
    request.authorization = authorization_;
  }
  http::Answer answer = access_.client.send(request, download);
  if (answer.status != 401 || !request.authorization.empty()) return answer;
  request.authorization = log_in(request, answer);
  if (request.authorization.empty()) return answer;
  answer = access_.client.send(request, download);
  if (answer.status != 401) {
    const std::lock_guard guard(mutex_);
    authorization_ = request.authorization;
  }
  return answer;
}

Error HttpPlace::refusal(const http::Request& request, const http::Answer& answer) const {
  Error error = http::answer_error(request, answer);
  if (answer.status == 401) {
    const std::string host = request.url.authority();
    const auto login = credentials_.find(host, "");
    if (login) return std::move(error).hint("look at the login for " + host + " in " + login->origin);
    std::string files;
    for (const auto& file : credentials_.files()) files += (files.empty() ? "" : ", ") + file.native();
    return std::move(error).hint("a login for " + host + " in one of " + files + "; dsec-oci(5)");
  }
  if (answer.status == 403) error.hint("let the server's user read the registry's directory and files");
  return error;
}

std::vector<std::string> HttpPlace::names(const std::string& prefix) const {
  const auto text = read_file(std::string(kCatalogue), kLargestCatalogue);
  if (!text)
    throw failure("the registry has no " + std::string(kCatalogue) + ", and a web server lists nothing")
        .hint("dsec registry check --repair file:///PATH on a host that has its directory, which writes it")
        .hint("a tag (KIND/NAME:TAG) or a whole digest, which need no list");
  std::vector<std::string> names = parse_catalogue(*text);
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

}  // namespace dsec::registry
