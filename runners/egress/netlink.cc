#include "runners/egress/netlink.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace dsec::runners {

NetlinkMessage::NetlinkMessage(std::uint16_t type, std::uint16_t flags, const void* header, std::size_t header_size) {
  nlmsghdr head = {};
  head.nlmsg_type = type;
  head.nlmsg_flags = static_cast<std::uint16_t>(flags | NLM_F_REQUEST);
  text_.assign(reinterpret_cast<const char*>(&head), sizeof head);
  text_.append(static_cast<const char*>(header), header_size);
  pad();
}

void NetlinkMessage::pad() {
  while (text_.size() % NLMSG_ALIGNTO) text_ += '\0';
}

NetlinkMessage& NetlinkMessage::put(std::uint16_t type, std::string_view bytes) {
  const nlattr head = {static_cast<std::uint16_t>(NLA_HDRLEN + bytes.size()), type};
  text_.append(reinterpret_cast<const char*>(&head), sizeof head);
  text_ += bytes;
  pad();
  return *this;
}

NetlinkMessage& NetlinkMessage::text(std::uint16_t type, const std::string& value) {
  return put(type, {value.c_str(), value.size() + 1});
}

NetlinkMessage& NetlinkMessage::be32(std::uint16_t type, std::uint32_t value) { return u32(type, htonl(value)); }

NetlinkMessage& NetlinkMessage::u32(std::uint16_t type, std::uint32_t value) {
  return put(type, {reinterpret_cast<const char*>(&value), sizeof value});
}

NetlinkMessage& NetlinkMessage::open(std::uint16_t type) {
  const auto place = static_cast<std::uint32_t>(text_.size());
  places_.append(reinterpret_cast<const char*>(&place), sizeof place);
  return put(type | NLA_F_NESTED, {});
}

NetlinkMessage& NetlinkMessage::close() {
  std::uint32_t place = 0;
  std::memcpy(&place, places_.data() + places_.size() - sizeof place, sizeof place);
  places_.resize(places_.size() - sizeof place);
  const auto length = static_cast<std::uint16_t>(text_.size() - place);
  std::memcpy(text_.data() + place, &length, sizeof length);
  return *this;
}

std::uint16_t NetlinkMessage::type() const {
  nlmsghdr head = {};
  std::memcpy(&head, text_.data(), sizeof head);
  return head.nlmsg_type;
}

std::string NetlinkMessage::bytes(std::uint32_t sequence) const {
  std::string whole = text_;
  nlmsghdr head = {};
  std::memcpy(&head, whole.data(), sizeof head);
  head.nlmsg_len = static_cast<std::uint32_t>(whole.size());
  head.nlmsg_seq = sequence;
  std::memcpy(whole.data(), &head, sizeof head);
  return whole;
}

NetlinkSocket::NetlinkSocket(int protocol) : socket_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol)) {
  if (!socket_) throw system_error("open a netlink socket");
  const timeval patience = {10, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

int NetlinkSocket::request(std::string_view messages) const {
  const sockaddr_nl kernel = {AF_NETLINK, 0, 0, 0};
  if (::sendto(socket_.get(), messages.data(), messages.size(), 0, reinterpret_cast<const sockaddr*>(&kernel),
               sizeof kernel) < 0)
    throw system_error("send a netlink request");
  alignas(nlmsghdr) char buffer[8192];
  const ssize_t got = ::recv(socket_.get(), buffer, sizeof buffer, 0);
  if (got < 0) throw system_error("wait for the answer of a netlink request");
  const auto* head = reinterpret_cast<const nlmsghdr*>(buffer);
  if (static_cast<std::size_t>(got) < NLMSG_HDRLEN + sizeof(nlmsgerr) || head->nlmsg_type != NLMSG_ERROR)
    throw failure("the kernel gave an unknown answer to a netlink request");
  return -reinterpret_cast<const nlmsgerr*>(buffer + NLMSG_HDRLEN)->error;
}

}  // namespace dsec::runners
