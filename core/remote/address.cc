#include "core/remote/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "core/base/error.h"
#include "core/engine/port_forward.h"

namespace dsec::remote {
namespace {

constexpr std::string_view kUnix = "unix:", kHttp = "http://";

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (!path.starts_with('/')) throw usage_error("the path of socket " + quote(path) + " is not absolute");
  if (path.size() >= sizeof address.sun_path)
    throw usage_error("the path of socket " + quote(path) + " is longer than " +
                      std::to_string(sizeof address.sun_path - 1) + " bytes");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

UniqueFd unix_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("make a socket");
  return socket;
}

UniqueFd connect_unix(const std::string& path) {
  const sockaddr_un address = address_of(path);
  UniqueFd socket = unix_socket();
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    if (errno != EINTR) throw system_error("connect to " + quote(path));
  return socket;
}

UniqueFd connect_tcp(const std::string& host, std::uint16_t port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  const std::string service = std::to_string(port);
  if (const int error = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found); error != 0)
    throw failure("look up " + quote(host) + ": " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  int error = 0;
  for (const addrinfo* each = found; each; each = each->ai_next) {
    UniqueFd socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket) throw system_error("make a socket");
    constexpr int kOn = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof kOn);
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0) return socket;
    error = errno;
  }
  throw system_error("connect to " + host + ":" + service, error);
}

UniqueFd listen_unix(const std::string& path) {
  const sockaddr_un address = address_of(path);
  UniqueFd socket = unix_socket();
  struct stat info = {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
    const UniqueFd probe = unix_socket();
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
      throw usage_error("somebody listens at " + quote(path) + " already");
    ::unlink(path.c_str());
  }
  // Before bind, which makes a file of this mode: whoever comes in between cannot connect.
  if (::fchmod(socket.get(), 0600) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 4096) != 0)
    throw system_error("listen at " + quote(path));
  return socket;
}

bool is_loopback_name(const std::string& host) {
  in_addr four;
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  return host == "localhost" || host == "::1";
}

bool is_loopback(int socket) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    throw system_error("name the address of a socket");
  if (storage.ss_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
  return storage.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

}  // namespace

Address Address::parse(const std::string& url) {
  if (url.starts_with(kUnix)) {
    Address address;
    address.path = url.substr(kUnix.size());
    address_of(address.path);
    return address;
  }
  const bool tls = url.starts_with("https://");
  if (!tls && !url.starts_with(kHttp))
    throw usage_error(quote(url) + " is no address of an edge").hint("unix:/PATH").hint("http://127.0.0.1:7701");
  std::string rest = url.substr(url.find("//") + 2);
  if (rest.ends_with('/')) rest.pop_back();
  // A colon within brackets belongs to an address of IPv6.
  const std::size_t bracket = rest.find(']'), colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  Address address{.path = {}, .host = rest.substr(0, colon), .port = kEdgePort};
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  const std::string port = colon == std::string::npos ? "" : rest.substr(colon + 1);
  if (colon != std::string::npos) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (error != std::errc() || end != port.data() + port.size() || address.port == 0)
      throw usage_error(quote(url) + " has no valid port");
  }
  if (address.host.empty() || address.host.find_first_of("/?#@[]") != std::string::npos)
    throw usage_error(quote(url) + " is no address of an edge, which is a host and perhaps a port")
        .hint("http://127.0.0.1:7701");
  if (tls || !is_loopback_name(address.host))
    throw usage_error(quote(url) + " needs TLS, which dsec does not speak with edges yet")
        .hint("a tunnel: ssh -N -L /run/edge.sock:/run/dsec/edge.sock HOST, then unix:/run/edge.sock");
  return address;
}

std::string Address::str() const {
  if (!path.empty()) return std::string(kUnix) + path;
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return "http://" + name + ":" + std::to_string(port);
}

UniqueFd Address::connect() const { return path.empty() ? connect_tcp(host, port) : connect_unix(path); }

UniqueFd listen_for_clients(const std::string& text, std::string& bound) {
  if (text.starts_with(kUnix)) {
    bound = text;
    return listen_unix(text.substr(kUnix.size()));
  }
  UniqueFd socket = engine::listen_at(text, bound);
  if (!is_loopback(socket.get()))
    throw usage_error("an edge at " + quote(text) +
                      " could be reached from other hosts, and that needs TLS, which it "
                      "does not speak yet")
        .hint("127.0.0.1:" + std::to_string(kEdgePort))
        .hint("unix:/PATH, which ssh -L brings to another host");
  if (::listen(socket.get(), 4096) != 0) throw system_error("listen at " + text);
  bound = "http://" + bound;
  return socket;
}

bool needs_token(const std::string& text) { return !text.starts_with(kUnix); }

}  // namespace dsec::remote
