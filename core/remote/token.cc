#include "core/remote/token.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::remote {

std::string read_token(const std::string& file) {
  return attempt("cannot take the token of " + quote(file), [&] {
    const UniqueFd fd = open_file(file, O_RDONLY);
    struct stat info = {};
    if (::fstat(fd.get(), &info) != 0) throw system_error("stat it");
    if (info.st_mode & 077) throw usage_error("others than its owner can read or write it").hint("chmod 600 " + file);
    std::string token = read_all(fd.get(), 4096);
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
    const bool visible = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; });
    if (token.size() < 16 || token.size() > 512 || !visible)
      throw usage_error("it is not one line of 16 to 512 visible characters").hint("openssl rand -hex 32 > " + file);
    return token;
  });
}

}  // namespace dsec::remote
