#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsec::http {

/// An http or https URL in its parts; one that exists is well formed and holds no user name or password.
struct Url {
  std::string scheme;      ///< "http" or "https"
  std::string host;        ///< lowercase; an IPv6 address without its brackets
  std::uint16_t port = 0;  ///< the scheme's own where the text has none
  std::string target;      ///< path and query, with the leading '/', escaped as it was

  /// Throws Error (Usage).
  static Url parse(std::string_view text);
  /// What a Location header that came from here means. Throws Error (Usage).
  Url resolve(const std::string& location) const;
  /// With one more parameter in the query; the value is escaped.
  Url with(std::string_view name, std::string_view value) const;

  std::string str() const;
  /// For messages: what stands behind a '?' may be a signature that opens the door.
  std::string shown() const;
  /// "host", or "host:port" where the port is not the scheme's own.
  std::string authority() const;
  bool same_origin(const Url& other) const;
  /// Whether it can only be this host: localhost, 127.0.0.0/8, ::1.
  bool is_loopback() const;
};

/// All but letters, digits and "-._~" as %XX.
std::string percent_encode(std::string_view text);

}  // namespace dsec::http
