#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsec::egress {

/// The head of an HTTP/1 request (RFC 9112), read strictly: what two readers could understand in two ways is Bad, since
/// the gateway and the server must agree on where each request ends and whom it is for.
struct HttpHead {
  enum class State {
    NeedMore,
    NotHttp,
    Bad,  ///< HTTP, but `fault` keeps it from being passed on
    Done,
  };
  State state = State::NeedMore;
  std::string fault;

  std::string method, target;  ///< as they came
  std::string host;            ///< normal name or address without brackets: of an absolute target, else of Host
  std::uint16_t port = 0;      ///< 0: none is given
  bool host_is_address = false;
  bool absolute = false;                                     ///< "GET http://host/path", as a proxy gets it
  std::vector<std::pair<std::string, std::string>> headers;  ///< in order
  std::uint64_t content_length = 0;
  bool chunked = false, upgrade = false, expects_close = false;
  std::size_t size = 0;  ///< bytes of the head, with its empty line
};

inline constexpr std::size_t kLongestHead = 64 << 10;

HttpHead parse_http_head(std::string_view bytes);

/// Path and query of an absolute target: "/" at least.
std::string_view origin_form(const HttpHead& head);

/// Finds where the body of a request ends.
class HttpBody {
 public:
  HttpBody() = default;
  explicit HttpBody(const HttpHead& head);
  bool done() const { return phase_ == Phase::Done; }
  bool bad() const { return phase_ == Phase::Bad; }
  /// How many bytes of `bytes` belong to the body; all of them unless it ends (or is bad) among them.
  std::size_t consume(std::string_view bytes);

 private:
  enum class Phase { Done, Length, Size, Data, DataEnd, Trailer, Bad };
  void end_line();

  Phase phase_ = Phase::Done;
  std::uint64_t left_ = 0;
  std::string line_;
};

/// What was not taken for HTTP is passed on unread, and a server may take more for HTTP than parse_http_head() does:
/// after empty lines, with other blanks, with a method of small letters, with a line of any length. So its first line
/// is watched.
class FirstLine {
 public:
  /// True when the line names HTTP as its protocol; `bytes` are what follows those of the calls before.
  bool names_http(std::string_view bytes);

 private:
  bool begun_ = false, over_ = false;
  std::size_t matched_ = 0;  ///< of "HTTP/"
};

}  // namespace dsec::egress
