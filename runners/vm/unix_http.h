#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace dsec::runners {

struct UnixAnswer {
  long status = 0;
  std::string body;
};

/// One HTTP/1.1 request with a JSON body over a unix socket, and its answer, at most 1 MiB. `body` may be empty. Throws
/// Error when there is none within `patience`, whatever the other end does.
UnixAnswer send_over_unix(const std::filesystem::path& socket, const std::string& method, const std::string& path,
                          const std::string& body, std::chrono::milliseconds patience);

}  // namespace dsec::runners
