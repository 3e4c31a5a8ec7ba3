#include "core/remote/edge_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace dsec::remote {
using engine::HttpAnswer;
using engine::HttpRequest;
using engine::HttpResponse;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

constexpr std::size_t kPiece = 64 << 10;
// Several times what an edge lets pass between two frames.
constexpr std::chrono::seconds kSilence{60};
constexpr std::uint64_t kLongestAnswer = 256ull << 20;

// False when the other side takes no more, which it tells why.
bool send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return false;
    if (sent < 0) throw system_error("send to the edge");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::string body_of(HttpAnswer& answer) {
  std::string body;
  for (std::string piece; !(piece = answer.some()).empty(); body += piece)
    if (body.size() > kLongestAnswer) throw failure("the answer is larger than any that an edge gives");
  return body;
}

// Throws what an answer says went wrong.
[[noreturn]] void refuse(const HttpResponse& head, const std::string& body) {
  throw error_from_document(body, "it answered with " + std::to_string(head.status) + " " + head.reason);
}

// The head of an answer and not a byte more, since what follows is not for us.
std::string read_head(int socket) {
  constexpr std::size_t kLongest = 64 << 10;
  constexpr std::string_view kEnd = "\r\n\r\n";
  std::string head;
  while (head.size() < kLongest) {
    std::array<char, 4096> piece;
    const ssize_t seen = ::recv(socket, piece.data(), piece.size(), MSG_PEEK);
    if (seen < 0 && errno == EINTR) continue;
    if (seen < 0) throw system_error("hear from the edge");
    if (seen == 0) throw failure("it ended the connection without an answer");
    const std::size_t before = head.size();
    head.append(piece.data(), static_cast<std::size_t>(seen));
    const std::size_t end = head.find(kEnd, before < kEnd.size() ? 0 : before - kEnd.size());
    if (end != std::string::npos) head.resize(end + kEnd.size());
    for (std::size_t left = head.size() - before; left > 0;) {
      const ssize_t got = ::recv(socket, piece.data(), left, 0);
      if (got > 0) left -= static_cast<std::size_t>(got);
    }
    if (end != std::string::npos) return head;
  }
  throw failure("the head of its answer does not end");
}

}  // namespace

const Json& no_body() {
  static const Json none;
  return none;
}

std::optional<Frame> FrameStream::next(std::optional<milliseconds> timeout) {
  try {
    return take(timeout);
  } catch (const Error&) {
    // Another thread may be sending, and wait for room that an edge which is gone does not make.
    ::shutdown(socket_.get(), SHUT_RDWR);
    throw;
  }
}

std::optional<Frame> FrameStream::take(std::optional<milliseconds> timeout) {
  const auto end = steady_clock::now() + timeout.value_or(milliseconds(0));
  for (;;) {
    while (std::optional<Frame> frame = frames_.next()) {
      if (frame->kind == FrameKind::Failed) throw error_from_document(frame->payload, "the edge failed");
      if (frame->kind != FrameKind::KeepAlive) return frame;
    }
    const auto patience = std::chrono::ceil<milliseconds>(heard_ + kSilence - steady_clock::now());
    auto wait = patience;
    if (timeout) wait = std::min(wait, std::chrono::ceil<milliseconds>(end - steady_clock::now()));
    pollfd waiting{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(wait.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && timeout && steady_clock::now() >= end) return std::nullopt;
    if (ready == 0 && patience.count() <= 0) throw failure("the edge has been silent for a minute");
    if (ready == 0) continue;
    std::array<char, kPiece> piece;
    const ssize_t got = ::recv(socket_.get(), piece.data(), piece.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("hear from the edge");
    if (got == 0) throw failure("the edge ended the connection");
    heard_ = steady_clock::now();
    frames_.add({piece.data(), static_cast<std::size_t>(got)});
  }
}

void FrameStream::send(FrameKind kind, std::string_view payload) {
  const std::lock_guard lock(sending_);
  if (!send_all(socket_.get(), frame(kind, payload))) throw failure("the edge takes no more");
}

template <typename Work>
auto EdgeClient::talk(Work&& work) const {
  return attempt("cannot talk to the edge of context " + quote(place_.context) + " at " + place_.address.str(),
                 std::forward<Work>(work));
}

UniqueFd EdgeClient::connect() const {
  try {
    return place_.address.connect();
  } catch (Error& error) {
    error.hint("dsec edge --listen … on its host").hint("--context local works on this host");
    throw;
  }
}

HttpRequest EdgeClient::request_of(Call call, const Parameters& parameters, const Json& body,
                                   const OperationContext& context) const {
  check_op_id(context.op_id);
  HttpRequest request;
  request.method = route_of(call).method;
  request.path = target_of(call, parameters);
  request.host = place_.address.path.empty() ? place_.address.str().substr(std::string_view("http://").size()) : "edge";
  if (!body.is_null()) {
    request.body = canonical_json(body);
    request.headers.push_back("Content-Type: application/json");
  }
  if (place_.token) request.headers.push_back("Authorization: Bearer " + *place_.token);
  if (!context.op_id.empty()) request.headers.push_back(std::string(kOpIdHeader) + ": " + context.op_id);
  request.headers.push_back(std::string(kOriginHeader) + ": " + std::string(to_string(context.origin)));
  if (!context.recorded) request.headers.push_back(std::string(kRecordedHeader) + ": false");
  return request;
}

Json EdgeClient::ask(Call call, const Parameters& parameters, const Json& body, const OperationContext& context,
                     int* status) const {
  const HttpRequest request = request_of(call, parameters, body, context);
  HttpResponse head;
  const std::string text = talk([&] {
    const UniqueFd socket = connect();
    send_all(socket.get(), engine::http_text(request));
    HttpAnswer answer(socket.get());
    head = answer.head(request.method);
    return body_of(answer);
  });
  if (head.status >= 300) refuse(head, text);
  if (status) *status = head.status;
  return talk([&] { return parse_json(text, "its answer"); });
}

std::unique_ptr<FrameStream> EdgeClient::open(Call call, const Parameters& parameters, const Json& body,
                                              const OperationContext& context) const {
  return std::make_unique<FrameStream>(upgrade(call, parameters, body, context, kFramesProtocol));
}

void EdgeClient::read(Call call, const Parameters& parameters, const Json& body, const OperationContext& context,
                      const std::function<void(const Frame&)>& take) const {
  const std::unique_ptr<FrameStream> stream = open(call, parameters, body, context);
  while (const std::optional<Frame> frame = stream->next()) {
    if (frame->kind == FrameKind::End) return;
    take(*frame);
  }
}

void EdgeClient::upload(Call call, const Parameters& parameters, int source, const OperationContext& context) const {
  HttpRequest request = request_of(call, parameters, no_body(), context);
  request.headers.push_back("Content-Type: application/x-tar");
  request.headers.push_back("Transfer-Encoding: chunked");
  UniqueFd socket;
  talk([&] {
    socket = connect();
    send_all(socket.get(), engine::http_text(request));
  });
  std::string piece(kPiece, '\0');
  for (;;) {
    const ssize_t got = ::read(source, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read what is to be copied");
    char size[24];
    const int length = std::snprintf(size, sizeof size, "%zx\r\n", static_cast<std::size_t>(got));
    std::string chunk(size, static_cast<std::size_t>(length));
    chunk.append(piece.data(), static_cast<std::size_t>(got));
    // An edge that takes no more has answered why.
    if (!send_all(socket.get(), chunk + "\r\n") || got == 0) break;
  }
  HttpResponse head;
  const std::string text = talk([&] {
    HttpAnswer answer(socket.get());
    head = answer.head(request.method);
    return body_of(answer);
  });
  if (head.status >= 300) refuse(head, text);
}

UniqueFd EdgeClient::upgrade(Call call, const Parameters& parameters, const Json& body, const OperationContext& context,
                             const std::string& protocol) const {
  HttpRequest request = request_of(call, parameters, body, context);
  request.headers.push_back("Connection: Upgrade");
  request.headers.push_back("Upgrade: " + protocol);
  HttpResponse head;
  std::string refused;
  UniqueFd socket = talk([&] {
    UniqueFd made = connect();
    send_all(made.get(), engine::http_text(request));
    std::string text = read_head(made.get());
    HttpAnswer answer(made.get(), std::move(text));
    head = answer.head(request.method);
    if (head.status != 101) refused = body_of(answer);
    return made;
  });
  if (head.status != 101) refuse(head, refused);
  return socket;
}

}  // namespace dsec::remote
