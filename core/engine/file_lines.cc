#include "core/engine/file_lines.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "core/base/error.h"

namespace dsec::engine {

void for_each_line(int fd, std::size_t longest, const std::function<bool(std::string_view line)>& take) {
  std::vector<char> buffer(64u << 10);
  std::string rest;
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read lines");
    if (got == 0) return;
    at += got;
    rest.append(buffer.data(), static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
      if (end - begin > longest || !take(std::string_view(rest).substr(begin, end - begin))) return;
    rest.erase(0, begin);
    if (rest.size() > longest) return;
  }
}

}  // namespace dsec::engine
