#include "layers/dockerfile/request.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "core/base/files.h"

namespace dsec::layers::dockerfile {
namespace fs = std::filesystem;
namespace {

// Empty when there is no such file; a FIFO or a device would block.
std::optional<std::string> read_text(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (!fd) throw system_error("open " + quote(file.native()));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw system_error("stat " + quote(file.native()));
  if (!S_ISREG(info.st_mode)) throw usage_error(quote(file.native()) + " is no regular file");
  return attempt("read " + quote(file.native()), [&] { return read_all(fd.get(), kLargestDockerfile); });
}

void take_option(std::string_view option, Request& request) {
  const std::size_t equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  const std::string value(equals == std::string_view::npos ? "" : option.substr(equals + 1));
  if (equals != std::string_view::npos && name == "file" && !value.empty()) {
    const fs::path normal = fs::path(value).lexically_normal();
    if (normal.is_absolute() || *normal.begin() == "..")
      throw usage_error("file=" + quote(value) + " leads out of the build context");
    request.file = normal.native();
  } else if (equals != std::string_view::npos && name == "target" && !value.empty()) {
    request.target = value;
  } else if (name == "network" && (value == "none" || value == "host")) {
    request.host_network = value == "host";
  } else if (equals != std::string_view::npos && name.starts_with("arg.") && name.size() > 4) {
    request.args[std::string(name.substr(4))] = value;
  } else {
    throw usage_error("the source dockerfile: has no option " + quote(option))
        .hint("?file=FILE, ?target=STAGE, ?network=none, ?network=host or ?arg.NAME=VALUE, joined by &");
  }
}

}  // namespace

Request Request::parse(std::string_view source, const fs::path& base) {
  std::string_view text = source.substr(std::string_view("dockerfile:").size());
  Request request;
  if (const std::size_t mark = text.find('?'); mark != std::string_view::npos) {
    for (std::string_view rest = text.substr(mark + 1); !rest.empty();) {
      const std::string_view option = rest.substr(0, rest.find('&'));
      rest.remove_prefix(std::min(option.size() + 1, rest.size()));
      take_option(option, request);
    }
    text = text.substr(0, mark);
  }
  if (text.empty()) throw usage_error("the source dockerfile: names no folder").hint("dockerfile:DIR");
  request.directory = base / text;
  return request;
}

Dockerfile Request::read() const {
  const fs::path path = directory / file;
  const std::optional<std::string> text = read_text(path);
  if (!text) throw usage_error("there is no " + quote(path.native())).hint("?file=FILE names it, from the folder on");
  return Dockerfile::parse(*text, path.native());
}

IgnoreList Request::read_ignore_list() const {
  for (const std::string& name : {file + ".dockerignore", std::string(".dockerignore")})
    if (const std::optional<std::string> text = read_text(directory / name))
      return IgnoreList::parse(*text, (directory / name).native());
  return {};
}

}  // namespace dsec::layers::dockerfile
