#include "runners/vm/qmp.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

using std::chrono::steady_clock;

// QEMU's longest answers to what we ask are a few KiB.
constexpr std::size_t kLongestMessage = 1 << 20;
constexpr std::size_t kMostEvents = 256;

int milliseconds_until(steady_clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

// Throws Error when that is not possible in time. `fd` goes with the first byte.
void send_message(int socket, std::string_view text, int fd, steady_clock::time_point until) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  while (!text.empty()) {
    iovec part{const_cast<char*>(text.data()), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
      fd = -1;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) throw system_error("write to it");
    if (milliseconds_until(until) == 0) throw failure("it does not read");
    pollfd room{socket, POLLOUT, 0};
    (void)::poll(&room, 1, milliseconds_until(until));
  }
}

}  // namespace

Qmp::Qmp(UniqueFd socket, Time patience) : socket_(std::move(socket)) {
  attempt("cannot talk to QEMU's monitor", [&] {
    const auto until = steady_clock::now() + patience;
    const Json greeting = receive(until);
    const auto qmp = greeting.find("QMP");
    if (qmp == greeting.end() || !qmp->is_object()) lose("it greets in a way that is not QMP's");
    try {
      const Json& version = qmp->at("version").at("qemu");
      for (const char* part : {"major", "minor", "micro"})
        version_ += (version_.empty() ? "" : ".") + std::to_string(json_u64(version, part));
    } catch (const std::exception&) {
      lose("it does not say its version");
    }
    execute("qmp_capabilities", std::max(Time(1), Time(milliseconds_until(until))));
  });
}

void Qmp::lose(const std::string& why) {
  socket_.reset();
  throw failure(why);
}

void Qmp::keep(const Json& event) {
  if (events_.size() == kMostEvents) events_.pop_front();
  const auto data = event.find("data");
  events_.push_back({json_string(event, "event"), data == event.end() ? "{}" : canonical_json(*data)});
}

std::optional<std::string> Qmp::take_line() {
  const std::size_t end = received_.find('\n');
  if (end == std::string::npos) {
    if (received_.size() > kLongestMessage) lose("it sends a message that does not end");
    return std::nullopt;
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

// The next message of any kind.
Json Qmp::receive(steady_clock::time_point until) {
  if (!socket_) throw failure("the connection was lost before");
  for (;;) {
    while (std::optional<std::string> line = take_line()) {
      if (line->find_first_not_of(" \r\t") == std::string::npos) continue;
      Json message;
      try {
        message = parse_json(*line, "QMP");
      } catch (const Error& error) {
        lose("it sends what is no JSON: " + error.message());
      }
      if (!message.is_object()) lose("it sends JSON that is no object");
      return message;
    }
    pollfd ready{socket_.get(), POLLIN, 0};
    const int wait = milliseconds_until(until);
    const int polled = ::poll(&ready, 1, wait);
    if (polled == 0 || (polled < 0 && wait == 0)) lose("it gives no answer in time");
    if (polled < 0) continue;
    char chunk[16384];
    const ssize_t got = ::recv(socket_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) lose(system_error("read from it").message());
    if (got == 0) lose("it has closed the connection");
    received_.append(chunk, static_cast<std::size_t>(got));
  }
}

Json Qmp::execute(const std::string& command, Time patience) { return execute(command, Json::object(), patience); }

Json Qmp::execute(const std::string& command, const Json& arguments, Time patience, int fd) {
  return attempt("QEMU does not carry out " + quote(command), [&]() -> Json {
    if (!socket_) throw failure("the connection was lost before");
    const auto until = steady_clock::now() + patience;
    const std::uint64_t id = ++last_id_;
    Json request{{"execute", command}, {"id", id}};
    if (!arguments.empty()) request["arguments"] = arguments;
    try {
      send_message(socket_.get(), canonical_json(request) + "\r\n", fd, until);
    } catch (const Error& error) {
      lose(error.message());
    }
    for (;;) {
      if (steady_clock::now() >= until) lose("it gives no answer in time");
      const Json message = receive(until);
      if (message.contains("event") && message["event"].is_string()) {
        keep(message);
        continue;
      }
      if (message.value("id", Json()) != Json(id)) lose("it answers what was not asked");
      if (const auto result = message.find("return"); result != message.end()) return *result;
      const auto error = message.find("error");
      if (error == message.end() || !error->is_object()) lose("its answer is neither a result nor an error");
      throw failure(json_string_or(*error, "desc", "it does not say why"));
    }
  });
}

std::optional<QmpEvent> Qmp::next_event(Time patience) {
  const auto until = steady_clock::now() + patience;
  while (events_.empty()) {
    if (!socket_) throw failure("the connection to QEMU was lost before");
    if (received_.find('\n') == std::string::npos) {
      pollfd ready{socket_.get(), POLLIN, 0};
      const int polled = ::poll(&ready, 1, milliseconds_until(until));
      if (polled <= 0 && steady_clock::now() >= until) return std::nullopt;
      if (polled <= 0) continue;
      // What has begun to come is waited for a little longer.
    }
    const Json message = receive(std::max(until, steady_clock::now() + std::chrono::seconds(1)));
    if (!message.contains("event") || !message["event"].is_string()) lose("QEMU answers what was not asked");
    keep(message);
  }
  QmpEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace dsec::runners
