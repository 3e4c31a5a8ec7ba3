#include "core/engine/http_exchange.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

constexpr std::size_t kLongestLine = 256 << 10, kMostHeaders = 1000;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_name(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](char a, char b) { return lower(a) == lower(b); });
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<std::uint64_t> number(std::string_view text, int base) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A request is made of lines: what could end one early would be another request.
void check_line(const std::string& text, const char* what) {
  if (text.find_first_of(std::string("\r\n\0", 3)) != std::string::npos)
    throw usage_error(std::string(what) + " " + quote(text) + " has a line end or NUL in it");
}

void send(int stream, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(stream, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    // It may have answered already, without wanting all of the body.
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return;
    if (sent < 0) throw system_error("send the request");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void set_timeout(int stream, std::chrono::milliseconds timeout) {
  const auto count = std::max<std::int64_t>(timeout.count(), 1);
  const timeval limit{.tv_sec = count / 1000, .tv_usec = count % 1000 * 1000};
  if (::setsockopt(stream, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0) throw system_error("set the timeout");
}

}  // namespace

std::string HttpResponse::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (same_name(key, name)) return value;
  return {};
}

std::string http_text(const HttpRequest& request) {
  check_line(request.method, "method");
  check_line(request.path, "path");
  std::string text = request.method + " " + request.path + " HTTP/1.1\r\n";
  const auto is_given = [&](std::string_view name) {
    return std::any_of(request.headers.begin(), request.headers.end(), [&](const std::string& given) {
      return same_name(trimmed(std::string_view(given).substr(0, given.find(':'))), name);
    });
  };
  const auto add_unless_given = [&](const std::string& name, const std::string& value) {
    if (!is_given(name)) text += name + ": " + value + "\r\n";
  };
  add_unless_given("Host", request.host);
  add_unless_given("User-Agent", "dsec");
  add_unless_given("Accept", "*/*");
  add_unless_given("Connection", "close");
  // Chunks are the caller's to send, and have no length.
  const bool has_body = !request.body.empty() || request.method == "POST" || request.method == "PUT";
  if (has_body && !is_given("Transfer-Encoding"))
    add_unless_given("Content-Length", std::to_string(request.body.size()));
  for (const std::string& header : request.headers) {
    check_line(header, "header");
    if (header.find(':') == std::string::npos) throw usage_error("header " + quote(header) + " has no ':'");
    text += header + "\r\n";
  }
  return text + "\r\n" + request.body;
}

// Without its end.
std::string HttpAnswer::line() {
  std::size_t end;
  while ((end = text_.find('\n', used_)) == std::string::npos) {
    if (text_.size() - used_ > kLongestLine) throw failure("a line of the answer is too long");
    if (!receive()) throw failure("the server ended the connection within the head of its answer");
  }
  std::string line = text_.substr(used_, end - used_);
  used_ = end + 1;
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

// Up to `most` bytes; empty at the end of the connection.
std::string HttpAnswer::raw(std::uint64_t most) {
  if (used_ == text_.size() && !receive()) return {};
  std::string part = text_.substr(used_, static_cast<std::size_t>(std::min<std::uint64_t>(most, text_.size() - used_)));
  used_ += part.size();
  return part;
}

bool HttpAnswer::receive() {
  text_.erase(0, used_);
  used_ = 0;
  char buffer[64 << 10];
  for (;;) {
    const ssize_t got = ::recv(stream_, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) throw failure("the server did not answer in time");
    if (got < 0) throw system_error("receive the answer");
    text_.append(buffer, static_cast<std::size_t>(got));
    return got > 0;
  }
}

const HttpResponse& HttpAnswer::head(std::string_view method) {
  do {
    head_ = {};
    const std::string status = line();
    // "HTTP/1.1 200 OK"
    const std::size_t space = status.find(' ');
    const std::optional<std::uint64_t> code =
        space == std::string::npos ? std::nullopt : number(std::string_view(status).substr(space + 1, 3), 10);
    if (!status.starts_with("HTTP/1.") || !code)
      throw failure("the answer is not HTTP: " + quote(status.substr(0, 80)));
    head_.status = static_cast<int>(*code);
    head_.reason = trimmed(std::string_view(status).substr(std::min(space + 4, status.size())));
    for (std::string header; !(header = line()).empty();) {
      const std::size_t colon = header.find(':');
      if (colon == std::string::npos) throw failure("a header of the answer has no ':'");
      if (head_.headers.size() == kMostHeaders) throw failure("the answer has too many headers");
      head_.headers.emplace_back(header.substr(0, colon), trimmed(std::string_view(header).substr(colon + 1)));
    }
    // "Continue" and the like come before the answer.
  } while (head_.status / 100 == 1 && head_.status != 101);
  if (method == "HEAD" || head_.status == 204 || head_.status == 304) return head_;
  if (same_name(head_.header("Transfer-Encoding"), "chunked")) {
    form_ = Form::Chunks;
  } else if (const std::string length = head_.header("Content-Length"); !length.empty()) {
    const std::optional<std::uint64_t> size = number(length, 10);
    if (!size) throw failure("the answer has a length of " + quote(length));
    form_ = Form::Length;
    left_ = *size;
  } else {
    form_ = Form::UntilEnd;
  }
  return head_;
}

// False at the last one.
bool HttpAnswer::begin_chunk() {
  if (within_chunk_ && !line().empty()) throw failure("a chunk of the answer is longer than it says");
  const std::string text = line();
  const std::optional<std::uint64_t> size = number(trimmed(std::string_view(text).substr(0, text.find(';'))), 16);
  if (!size) throw failure("a chunk of the answer has no size");
  left_ = *size;
  within_chunk_ = left_ > 0;
  if (within_chunk_) return true;
  form_ = Form::Empty;
  while (!line().empty()) {
  }
  return false;
}

std::string HttpAnswer::some() {
  if (form_ == Form::Empty) return {};
  if (form_ == Form::UntilEnd) return raw(64 << 10);
  if (left_ == 0 && (form_ == Form::Length || !begin_chunk())) return {};
  std::string part = raw(left_);
  if (part.empty()) throw failure("the server ended the connection " + std::to_string(left_) + " bytes early");
  left_ -= part.size();
  return part;
}

void http_exchange(int stream, const HttpRequest& request, const HttpSink& sink) {
  if (request.timeout) set_timeout(stream, *request.timeout);
  send(stream, http_text(request));
  HttpAnswer answer(stream);
  sink.head(answer.head(request.method));
  for (std::string part; !(part = answer.some()).empty();) sink.body(part);
}

}  // namespace dsec::engine
