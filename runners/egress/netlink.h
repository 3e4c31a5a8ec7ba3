#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// Netlink messages as text: attributes are appended in order, and nested ones know their length when they are closed.
class NetlinkMessage {
 public:
  NetlinkMessage(std::uint16_t type, std::uint16_t flags, const void* header, std::size_t header_size);
  NetlinkMessage& put(std::uint16_t type, std::string_view bytes);
  NetlinkMessage& text(std::uint16_t type, const std::string& value);  ///< with its NUL
  NetlinkMessage& be32(std::uint16_t type, std::uint32_t value);
  NetlinkMessage& u32(std::uint16_t type, std::uint32_t value);
  NetlinkMessage& open(std::uint16_t type);
  NetlinkMessage& close();
  std::uint16_t type() const;
  /// The whole message with its sequence number.
  std::string bytes(std::uint32_t sequence) const;

 private:
  void pad();
  std::string text_;
  std::string places_;  ///< of the open attributes, four bytes each
};

/// A netlink socket of the calling thread's network namespace.
class NetlinkSocket {
 public:
  explicit NetlinkSocket(int protocol);
  /// Sends and waits for the one acknowledgement that is asked for. Returns 0 or an errno; throws Error when the
  /// kernel does not answer.
  int request(std::string_view messages) const;

 private:
  UniqueFd socket_;
};

}  // namespace dsec::runners
