#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "core/model/ip_address.h"

namespace dsec::egress {

/// An address and port in the form of the system calls.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const IpAddress& address, std::uint16_t port) {
    if (address.is_v4()) {
      auto& four = reinterpret_cast<sockaddr_in&>(storage_);
      four.sin_family = AF_INET;
      four.sin_port = htons(port);
      four.sin_addr.s_addr = htonl(address.as_v4());
      size_ = sizeof four;
    } else {
      auto& six = reinterpret_cast<sockaddr_in6&>(storage_);
      six.sin6_family = AF_INET6;
      six.sin6_port = htons(port);
      std::memcpy(&six.sin6_addr, address.bytes.data(), 16);
      size_ = sizeof six;
    }
  }

  int family() const { return storage_.ss_family; }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  sockaddr* data() { return reinterpret_cast<sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  /// For calls that fill it.
  socklen_t* room() {
    size_ = sizeof storage_;
    return &size_;
  }
  IpAddress address() const {
    if (family() == AF_INET) return IpAddress::from_bytes(&reinterpret_cast<const sockaddr_in&>(storage_).sin_addr, 4);
    return IpAddress::from_bytes(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr, 16);
  }
  std::uint16_t port() const {
    return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in&>(storage_).sin_port
                                     : reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port);
  }

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = sizeof storage_;
};

}  // namespace dsec::egress
