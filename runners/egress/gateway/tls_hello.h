#pragma once

#include <string>
#include <string_view>

namespace dsec::egress {

/// What the first bytes of a connection say when they are a TLS ClientHello (RFC 8446 §4.1.2).
struct TlsHello {
  enum class State {
    NeedMore,  ///< so far it looks like one
    NotTls,
    Bad,  ///< TLS, but no ClientHello that can be read
    Done,
  };
  State state = State::NeedMore;
  std::string server_name;  ///< normal; empty: none
  bool encrypted = false;   ///< it carries an encrypted ClientHello, so that the name may not be the one that counts
};

/// A hello longer than this is Bad: the gateway keeps it until it is complete.
inline constexpr std::size_t kLongestHello = 32 << 10;

TlsHello parse_tls_hello(std::string_view bytes);

}  // namespace dsec::egress
