#include "core/http/url.h"

#include <arpa/inet.h>
#include <curl/curl.h>

#include <memory>

#include "core/base/error.h"
#include "core/http/shown_url.h"

namespace dsec::http {
namespace {

struct UrlDeleter {
  void operator()(CURLU* url) const { ::curl_url_cleanup(url); }
};
using Handle = std::unique_ptr<CURLU, UrlDeleter>;

struct TextDeleter {
  void operator()(char* text) const { ::curl_free(text); }
};

Handle new_handle() {
  Handle handle(::curl_url());
  if (!handle) throw std::bad_alloc();
  return handle;
}

std::string part(CURLU* url, CURLUPart which, unsigned flags = 0) {
  char* text = nullptr;
  if (::curl_url_get(url, which, &text, flags) != CURLUE_OK) return {};
  return std::unique_ptr<char, TextDeleter>(text).get();
}

void set(CURLU* url, std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f)
      throw usage_error(quote(shown_url(text)) + " is no URL: it holds a blank or a control character");
  if (const CURLUcode code = ::curl_url_set(url, CURLUPART_URL, std::string(text).c_str(), 0); code != CURLUE_OK)
    throw usage_error(quote(shown_url(text)) + " is no URL: " + ::curl_url_strerror(code));
}

Url from_handle(CURLU* handle, std::string_view text) {
  Url url;
  url.scheme = part(handle, CURLUPART_SCHEME);
  if (url.scheme != "http" && url.scheme != "https")
    throw usage_error(quote(shown_url(text)) + " is no http: or https: URL");
  if (!part(handle, CURLUPART_USER).empty() || !part(handle, CURLUPART_PASSWORD).empty())
    throw usage_error("a URL with a user name or password is not taken").hint("put it where credentials are kept");
  url.host = part(handle, CURLUPART_HOST);
  for (char& c : url.host)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (url.host.size() > 2 && url.host.front() == '[') url.host = url.host.substr(1, url.host.size() - 2);
  if (url.host.empty()) throw usage_error(quote(shown_url(text)) + " names no host");
  url.port = static_cast<std::uint16_t>(std::stoul(part(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT)));
  url.target = part(handle, CURLUPART_PATH);
  if (const std::string query = part(handle, CURLUPART_QUERY); !query.empty()) url.target += "?" + query;
  return url;
}

}  // namespace

Url Url::parse(std::string_view text) {
  const Handle handle = new_handle();
  set(handle.get(), text);
  return from_handle(handle.get(), text);
}

Url Url::resolve(const std::string& location) const {
  const Handle handle = new_handle();
  set(handle.get(), str());
  set(handle.get(), location);
  return from_handle(handle.get(), location);
}

Url Url::with(std::string_view name, std::string_view value) const {
  Url url = *this;
  url.target += url.target.find('?') == std::string::npos ? '?' : '&';
  url.target += percent_encode(name) + "=" + percent_encode(value);
  return url;
}

std::string Url::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (scheme == "http" ? 80 : 443) ? name : name + ":" + std::to_string(port);
}

std::string Url::str() const { return scheme + "://" + authority() + target; }

std::string Url::shown() const {
  const std::string text = str();
  const std::size_t query = text.find('?');
  return query == std::string::npos ? text : text.substr(0, query) + "?…";
}

bool Url::same_origin(const Url& other) const {
  return scheme == other.scheme && host == other.host && port == other.port;
}

bool Url::is_loopback() const {
  in_addr four;
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  return host == "localhost" || host.ends_with(".localhost") || host == "::1";
}

std::string percent_encode(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~';
    out += plain ? std::string(1, c) : std::string{'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

}  // namespace dsec::http
