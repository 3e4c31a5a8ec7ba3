#include "core/engine/network_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/sealed_lines.h"

namespace dsec::engine {
namespace fs = std::filesystem;

std::optional<NetworkEvent> network_event_from(const Json& json) {
  if (json.contains("schema")) {
    if (json_u64(json, "schema") > 1)
      throw failure("the network log was written by a newer release of dsec").hint("update dsec");
    return std::nullopt;
  }
  NetworkEvent event;
  event.time = std::chrono::system_clock::time_point(std::chrono::microseconds(json_u64(json, "time_us")));
  event.lost = json_u64_or(json, "lost", 0);
  event.verdict = json_string_or(json, "verdict", "");
  event.protocol = json_string_or(json, "protocol", "");
  event.host = json_string_or(json, "host", "");
  event.address = json_string_or(json, "address", "");
  event.port = static_cast<std::uint16_t>(json_u64_or(json, "port", 0));
  event.sent = json_u64_or(json, "sent", 0);
  event.received = json_u64_or(json, "received", 0);
  event.requests = json_u64_or(json, "requests", 0);
  event.duration = std::chrono::microseconds(json_u64_or(json, "duration_us", 0));
  event.reason = json_string_or(json, "reason", "");
  event.phase = json_string_or(json, "phase", "");
  if (const auto flag = json.find("intercepted"); flag != json.end()) event.intercepted = *flag == true;
  if (const auto http = json.find("http"); http != json.end() && http->is_array())
    for (const Json& request : *http)
      if (request.is_string()) event.http.push_back(request.get<std::string>());
  return event;
}

NetworkLogContents read_network_log(const fs::path& directory) {
  NetworkLogContents contents;
  const fs::path file = directory / kNetworkLog;
  if (!fs::exists(file)) return contents;
  SealedLines lines(file);
  while (lines.next()) {
    try {
      if (auto event = network_event_from(lines.json())) contents.events.push_back(*std::move(event));
    } catch (const Error& bad) {
      lines.damaged("line " + std::to_string(lines.number()) + " of " + quote(file.native()) + ": " + bad.message());
      break;
    }
  }
  contents.damage = lines.damage();
  return contents;
}

std::string read_network_lines(const fs::path& directory, std::uint64_t from) {
  const UniqueFd file(::open((directory / kNetworkLog).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return "";
  if (!file || ::lseek(file.get(), static_cast<off_t>(from), SEEK_SET) < 0)
    throw system_error("read the network log of the sandbox");
  std::string text(1 << 20, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) throw system_error("read the network log of the sandbox");
  text.resize(static_cast<std::size_t>(got));
  // The last line may still be growing.
  text.resize(text.rfind('\n') + 1);
  return text;
}

}  // namespace dsec::engine
