#include "runners/egress/gateway/http_request.h"

#include <algorithm>
#include <charconv>

#include "core/model/network_policy.h"

namespace dsec::egress {
namespace {

constexpr std::size_t kLongestLine = 16 << 10, kMostHeaders = 200, kLongestMethod = 24;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return result;
}

bool token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte >= 32 && byte != 127) || byte == '\t';
  });
}

// "host", "host:port", "[v6]:port".
bool read_authority(std::string_view text, HttpHead& head) {
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return false;
    host = text.substr(1, close - 1);
    port = text.substr(close + 1);
    if (!port.empty() && port[0] != ':') return false;
    if (!port.empty()) port.remove_prefix(1);
    if (host.find(':') == std::string_view::npos) return false;
  } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), head.port);
    if (error != std::errc() || end != port.data() + port.size() || head.port == 0) return false;
  }
  if (const auto address = IpAddress::parse(host)) {
    head.host = address->str();
    head.host_is_address = true;
    return true;
  }
  head.host = normal_host_name(host);
  return !head.host.empty();
}

// False with a fault.
bool read_headers(std::string_view lines, HttpHead& head, std::string& host) {
  bool hosted = false, sized = false;
  while (!lines.empty()) {
    const std::size_t end = lines.find("\r\n");
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end + 2);
    const std::size_t colon = line.find(':');
    // Also a folded line, and a blank before the colon.
    if (colon == std::string_view::npos || !token(line.substr(0, colon)) || !plain(line))
      return head.fault = "a header cannot be read", false;
    const std::string name = lower(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (head.headers.size() == kMostHeaders) return head.fault = "it has too many headers", false;
    head.headers.emplace_back(line.substr(0, colon), value);
    if (name == "host") {
      if (hosted) return head.fault = "it has two Host headers", false;
      hosted = true;
      host = value;
    } else if (name == "content-length") {
      std::uint64_t length = 0;
      const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), length);
      if (sized || value.empty() || error != std::errc() || stop != value.data() + value.size())
        return head.fault = "its length cannot be read", false;
      sized = true;
      head.content_length = length;
    } else if (name == "transfer-encoding") {
      if (head.chunked || lower(value) != "chunked") return head.fault = "its transfer encoding is not known", false;
      head.chunked = true;
    } else if (name == "upgrade") {
      // What it would carry then are requests that nobody here could read.
      if (lower(value).find("h2c") != std::string::npos)
        return head.fault = "it upgrades to HTTP/2, which needs TLS", false;
      head.upgrade = true;
    } else if (name == "connection") {
      head.expects_close = head.expects_close || lower(value).find("close") != std::string::npos;
    }
  }
  if (head.chunked && sized) return head.fault = "it has two lengths", false;
  return true;
}

}  // namespace

HttpHead parse_http_head(std::string_view bytes) {
  HttpHead head;
  const auto end_as = [&](HttpHead::State state, const char* fault = "") {
    head.state = state;
    head.fault = *fault ? fault : head.fault;
    return head;
  };
  const std::size_t blank = bytes.find(' ');
  const std::string_view method = bytes.substr(0, std::min(blank, bytes.size()));
  // Methods could have other letters and have not; what begins with others must not wait for a line that never ends.
  const bool capitals =
      std::all_of(method.begin(), method.end(), [](char c) { return (c >= 'A' && c <= 'Z') || c == '-'; });
  if (method.size() > kLongestMethod || !capitals || blank == 0) return end_as(HttpHead::State::NotHttp);
  const std::size_t line_end = bytes.find('\n');
  if (line_end == std::string_view::npos)
    return end_as(bytes.size() > kLongestLine ? HttpHead::State::NotHttp : HttpHead::State::NeedMore);
  if (blank == std::string_view::npos || blank > line_end) return end_as(HttpHead::State::NotHttp);
  std::string_view line = bytes.substr(0, line_end);
  const bool carriage = line.ends_with('\r');
  if (carriage) line.remove_suffix(1);
  const std::size_t last = line.rfind(' ');
  const std::string_view version = line.substr(last + 1);
  if (last == blank || !version.starts_with("HTTP/")) return end_as(HttpHead::State::NotHttp);
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    return end_as(HttpHead::State::Bad, "it is not HTTP/1, and others need TLS");
  if (!carriage) return end_as(HttpHead::State::Bad, "its lines do not end with CR LF");
  head.method = method;
  head.target = line.substr(blank + 1, last - blank - 1);
  if (head.target.find_first_of(" \t") != std::string::npos || !plain(head.target) || head.target.empty())
    return end_as(HttpHead::State::Bad, "its target cannot be read");

  const std::size_t stop = bytes.substr(0, kLongestHead).find("\r\n\r\n", line_end - 1);
  if (stop == std::string_view::npos)
    return bytes.size() >= kLongestHead ? end_as(HttpHead::State::Bad, "its headers are too long")
                                        : end_as(HttpHead::State::NeedMore);
  head.size = stop + 4;
  std::string host;
  const std::size_t headers = line_end + 1;
  if (headers < stop + 2 && !read_headers(bytes.substr(headers, stop + 2 - headers), head, host))
    return end_as(HttpHead::State::Bad);
  if (version == "HTTP/1.0") head.expects_close = true;
  if (version == "HTTP/1.0" && head.chunked) return end_as(HttpHead::State::Bad, "its length cannot be read");

  if (head.method == "CONNECT") {
    if (!read_authority(head.target, head) || head.port == 0)
      return end_as(HttpHead::State::Bad, "CONNECT wants HOST:PORT");
    if (head.chunked || head.content_length) return end_as(HttpHead::State::Bad, "CONNECT has no body");
    return end_as(HttpHead::State::Done);
  }
  if (lower(head.target.substr(0, 7)) == "http://") {
    head.absolute = true;
    const std::size_t path = head.target.find_first_of("/?#", 7);
    if (!read_authority(std::string_view(head.target).substr(7, path == std::string::npos ? path : path - 7), head))
      return end_as(HttpHead::State::Bad, "its target names no host");
    return end_as(HttpHead::State::Done);
  }
  if (head.target[0] != '/' && head.target != "*")
    return end_as(HttpHead::State::Bad, "its target is neither a path nor a http:// URL");
  if (host.empty()) return end_as(HttpHead::State::Bad, "it names no host");
  if (!read_authority(host, head)) return end_as(HttpHead::State::Bad, "its Host is no host");
  return end_as(HttpHead::State::Done);
}

std::string_view origin_form(const HttpHead& head) {
  const std::size_t path = head.target.find_first_of("/?#", 7);
  return path == std::string::npos ? std::string_view("/") : std::string_view(head.target).substr(path);
}

HttpBody::HttpBody(const HttpHead& head) {
  if (head.chunked) {
    phase_ = Phase::Size;
  } else if (head.content_length) {
    phase_ = Phase::Length;
    left_ = head.content_length;
  }
}

void HttpBody::end_line() {
  if (!line_.ends_with('\r')) {
    phase_ = Phase::Bad;
    return;
  }
  line_.pop_back();
  // What ends a line for other readers, too, may stand in an extension or a trailer.
  if (!plain(line_)) {
    phase_ = Phase::Bad;
    return;
  }
  switch (phase_) {
    case Phase::Size: {
      const std::string_view digits = std::string_view(line_).substr(0, line_.find(';'));
      const std::string_view number = trimmed(digits);
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), left_, 16);
      const bool right = !number.empty() && error == std::errc() && end == number.data() + number.size();
      phase_ = !right ? Phase::Bad : left_ == 0 ? Phase::Trailer : Phase::Data;
      break;
    }
    case Phase::DataEnd:
      phase_ = line_.empty() ? Phase::Size : Phase::Bad;
      break;
    case Phase::Trailer:
      if (line_.empty()) phase_ = Phase::Done;
      break;
    default:
      break;
  }
  line_.clear();
}

std::size_t HttpBody::consume(std::string_view bytes) {
  std::size_t used = 0;
  while (used < bytes.size() && phase_ != Phase::Done && phase_ != Phase::Bad) {
    if (phase_ == Phase::Length || phase_ == Phase::Data) {
      const auto taken = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size() - used));
      used += taken;
      left_ -= taken;
      if (left_ == 0) phase_ = phase_ == Phase::Length ? Phase::Done : Phase::DataEnd;
      continue;
    }
    const std::size_t end = bytes.find('\n', used);
    const std::size_t until = std::min(end, bytes.size());
    line_ += bytes.substr(used, until - used);
    used = end == std::string_view::npos ? bytes.size() : end + 1;
    if (line_.size() > kLongestLine)
      phase_ = Phase::Bad;
    else if (end != std::string_view::npos)
      end_line();
  }
  return used;
}

bool FirstLine::names_http(std::string_view bytes) {
  constexpr std::string_view kEmpty{" \t\r\n\v\f", 6}, kName = "http/";
  for (const char c : bytes) {
    if (over_) return false;
    if (!begun_ && kEmpty.find(c) != std::string_view::npos) continue;
    begun_ = true;
    over_ = c == '\n';
    if (matched_ == kName.size() && c >= '0' && c <= '9') return true;
    const char small = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    if (matched_ < kName.size() && small == kName[matched_])
      ++matched_;
    else
      matched_ = small == kName[0];
  }
  return false;
}

}  // namespace dsec::egress
