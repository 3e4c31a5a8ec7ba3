#include "runners/egress/gateway/tls_hello.h"

#include <cstdint>

#include "core/model/network_policy.h"

namespace dsec::egress {
namespace {

constexpr std::uint8_t kHandshake = 22, kClientHello = 1;
constexpr std::uint16_t kServerName = 0, kEncryptedHello = 0xfe0d;

/// Reads big-endian fields; after the first that does not fit everything is empty.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : left_(bytes) {}
  bool ok() const { return ok_; }
  bool empty() const { return left_.empty(); }
  std::size_t number(unsigned size) {
    std::size_t value = 0;
    for (const char c : take(size)) value = value << 8 | static_cast<std::uint8_t>(c);
    return value;
  }
  std::string_view take(std::size_t size) {
    if (!ok_ || left_.size() < size) {
      ok_ = false;
      left_ = {};
      return {};
    }
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  /// A field that begins with its own length, in `size` bytes.
  std::string_view vector(unsigned size) { return take(number(size)); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

bool read_server_name(std::string_view extension, TlsHello& hello) {
  Fields list(Fields(extension).vector(2));
  if (list.empty()) return false;
  const std::size_t type = list.number(1);
  const std::string_view name = list.vector(2);
  // Only host names are defined, and only one of them.
  if (!list.ok() || !list.empty() || type != 0) return false;
  hello.server_name = normal_host_name(name);
  return !hello.server_name.empty();
}

bool read_hello(std::string_view message, TlsHello& hello) {
  Fields fields(message);
  fields.take(2 + 32);
  fields.vector(1);
  fields.vector(2);
  fields.vector(1);
  if (fields.ok() && fields.empty()) return true;  // no extensions
  Fields extensions(fields.vector(2));
  if (!fields.ok() || !fields.empty()) return false;
  bool named = false;
  while (!extensions.empty()) {
    const std::size_t type = extensions.number(2);
    const std::string_view body = extensions.vector(2);
    if (!extensions.ok()) return false;
    if (type == kEncryptedHello) hello.encrypted = true;
    if (type != kServerName) continue;
    // A second one could be what the server looks at.
    if (named || !read_server_name(body, hello)) return false;
    named = true;
  }
  return extensions.ok();
}

}  // namespace

TlsHello parse_tls_hello(std::string_view bytes) {
  TlsHello hello;
  const auto state = [&](TlsHello::State reached) {
    hello.state = reached;
    return hello;
  };
  // The handshake message may be spread over several records.
  std::string message;
  std::size_t wanted = 4;
  while (message.size() < wanted) {
    if (!bytes.empty() && static_cast<std::uint8_t>(bytes[0]) != kHandshake)
      return state(message.empty() ? TlsHello::State::NotTls : TlsHello::State::Bad);
    if (bytes.size() >= 2 && bytes[1] != 3)
      return state(message.empty() ? TlsHello::State::NotTls : TlsHello::State::Bad);
    if (bytes.size() < 5) return state(TlsHello::State::NeedMore);
    const std::size_t length =
        static_cast<std::size_t>(static_cast<std::uint8_t>(bytes[3])) << 8 | static_cast<std::uint8_t>(bytes[4]);
    if (length == 0 || length > (16u << 10)) return state(TlsHello::State::Bad);
    const std::string_view part = bytes.substr(5, length);
    message += part;
    if (!message.empty() && static_cast<std::uint8_t>(message[0]) != kClientHello) return state(TlsHello::State::Bad);
    if (message.size() >= 4) {
      wanted = 4 + (static_cast<std::size_t>(static_cast<std::uint8_t>(message[1])) << 16 |
                    static_cast<std::size_t>(static_cast<std::uint8_t>(message[2])) << 8 |
                    static_cast<std::uint8_t>(message[3]));
      if (wanted > kLongestHello) return state(TlsHello::State::Bad);
    }
    if (part.size() < length && message.size() < wanted) return state(TlsHello::State::NeedMore);
    bytes.remove_prefix(5 + part.size());
  }
  if (!read_hello(std::string_view(message).substr(4, wanted - 4), hello)) return state(TlsHello::State::Bad);
  return state(TlsHello::State::Done);
}

}  // namespace dsec::egress
