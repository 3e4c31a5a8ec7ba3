#include "registry/web/http_place.h"

#include "core/base/error.h"
#include "registry/layout/catalogue.h"
#include "registry/layout/layout.h"

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

http::Answer HttpPlace::send(http::Request request, http::Download* download) const {
  return access_.client.send(request, download);
}

Error HttpPlace::refusal(const http::Request& request, const http::Answer& answer) const {
  Error error = http::answer_error(request, answer);
  if (answer.status == 401)
    error.hint("let the server give out the registry without a password, or to a client certificate; dsec-registry(5)");
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
