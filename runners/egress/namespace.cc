#include "runners/egress/namespace.h"

#include <arpa/inet.h>
#include <linux/if_addr.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "runners/egress/netlink.h"
#include "runners/egress/protocol.h"

// IPV6_TRANSPARENT and others are not in every C library's headers.
#ifndef IPV6_RECVORIGDSTADDR
#define IPV6_RECVORIGDSTADDR 74
#endif

namespace dsec::runners {
namespace {

constexpr std::uint32_t kLoopback = 1;  // the first device of every namespace
constexpr char kTable[] = "dsec", kChain[] = "egress";
constexpr std::int32_t kBeforeRouting = -150;  // NF_IP_PRI_MANGLE, where tproxy has its place
constexpr int kBacklog = 4096;

// Runs `work` on a thread of its own, whose namespace goes with it.
template <typename Work>
void on_own_thread(Work work) {
  std::exception_ptr failed;
  std::thread thread([&] {
    try {
      work();
    } catch (...) {
      failed = std::current_exception();
    }
  });
  thread.join();
  if (failed) std::rethrow_exception(failed);
}

std::string raw_address(int family, const char* text) {
  std::string bytes(family == AF_INET ? 4 : 16, '\0');
  ::inet_pton(family, text, bytes.data());
  return bytes;
}

// Another dsec may have been here before: then it is as it shall be.
void must(int error, const char* what) {
  if (error != 0 && error != EEXIST) throw system_error(what, error);
}

void add_address(const NetlinkSocket& route, int family, const char* address) {
  ifaddrmsg header = {};
  header.ifa_family = static_cast<std::uint8_t>(family);
  header.ifa_prefixlen = family == AF_INET ? 32 : 128;
  header.ifa_flags = IFA_F_NODAD;
  header.ifa_index = kLoopback;
  NetlinkMessage message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, &header, sizeof header);
  message.put(IFA_LOCAL, raw_address(family, address)).put(IFA_ADDRESS, raw_address(family, address));
  must(route.request(message.bytes(1)), "give the sandbox an address");
}

// "local 0.0.0.0/0 dev lo src ADDRESS" in the table of local addresses.
void add_route(const NetlinkSocket& route, int family, const char* source) {
  rtmsg header = {};
  header.rtm_family = static_cast<std::uint8_t>(family);
  header.rtm_table = RT_TABLE_LOCAL;
  header.rtm_protocol = RTPROT_STATIC;
  header.rtm_scope = RT_SCOPE_HOST;
  header.rtm_type = RTN_LOCAL;
  NetlinkMessage message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, &header, sizeof header);
  message.u32(RTA_OIF, kLoopback).put(RTA_PREFSRC, raw_address(family, source));
  must(route.request(message.bytes(1)), "make every address local to the sandbox");
}

/// One rule of the chain, expression by expression.
class Rule {
 public:
  Rule() : message_((NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, &kInet, sizeof kInet) {
    message_.text(NFTA_RULE_TABLE, kTable).text(NFTA_RULE_CHAIN, kChain).open(NFTA_RULE_EXPRESSIONS);
  }

  static constexpr nfgenmsg kInet = {NFPROTO_INET, NFNETLINK_V0, 0};

  Rule& meta_is(std::uint32_t key, std::uint8_t value) {
    begin("meta").be32(NFTA_META_DREG, NFT_REG_1).be32(NFTA_META_KEY, key);
    return end().equals(std::string(1, static_cast<char>(value)));
  }
  Rule& payload_is(std::uint32_t offset, const std::string& value) {
    begin("payload")
        .be32(NFTA_PAYLOAD_DREG, NFT_REG_1)
        .be32(NFTA_PAYLOAD_BASE, NFT_PAYLOAD_NETWORK_HEADER)
        .be32(NFTA_PAYLOAD_OFFSET, offset)
        .be32(NFTA_PAYLOAD_LEN, static_cast<std::uint32_t>(value.size()));
    return end().equals(value);
  }
  Rule& tproxy(std::uint16_t port) {
    const std::uint16_t wire = htons(port);
    begin("immediate").be32(NFTA_IMMEDIATE_DREG, NFT_REG_1).open(NFTA_IMMEDIATE_DATA);
    message_.put(NFTA_DATA_VALUE, {reinterpret_cast<const char*>(&wire), sizeof wire}).close();
    end();
    begin("tproxy").be32(NFTA_TPROXY_FAMILY, NFPROTO_UNSPEC).be32(NFTA_TPROXY_REG_PORT, NFT_REG_1);
    return end();
  }
  Rule& accept() {
    begin("immediate").be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT).open(NFTA_IMMEDIATE_DATA);
    message_.open(NFTA_DATA_VERDICT).be32(NFTA_VERDICT_CODE, NF_ACCEPT).close().close();
    return end();
  }
  NetlinkMessage done() {
    message_.close();
    return message_;
  }

 private:
  NetlinkMessage& begin(const char* expression) {
    return message_.open(NFTA_LIST_ELEM).text(NFTA_EXPR_NAME, expression).open(NFTA_EXPR_DATA);
  }
  Rule& end() {
    message_.close().close();
    return *this;
  }
  Rule& equals(const std::string& value) {
    begin("cmp").be32(NFTA_CMP_SREG, NFT_REG_1).be32(NFTA_CMP_OP, NFT_CMP_EQ).open(NFTA_CMP_DATA);
    message_.put(NFTA_DATA_VALUE, value).close();
    return end();
  }

  NetlinkMessage message_;
};

NetlinkMessage table_message(std::uint8_t what, std::uint16_t flags) {
  NetlinkMessage message(static_cast<std::uint16_t>((NFNL_SUBSYS_NFTABLES << 8) | what), flags, &Rule::kInet,
                         sizeof Rule::kInet);
  message.text(NFTA_TABLE_NAME, kTable);
  return message;
}

// What goes to the sandbox's own addresses passes, as does what the gateway answers; of the rest TCP and UDP go to the
// gateway's sockets, and nothing else anywhere.
std::vector<NetlinkMessage> rules(std::uint16_t tcp_port, std::uint16_t udp_port) {
  constexpr std::uint32_t kDestination4 = 16, kDestination6 = 24;
  NetlinkMessage chain((NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_NEWCHAIN, NLM_F_CREATE, &Rule::kInet, sizeof Rule::kInet);
  chain.text(NFTA_CHAIN_TABLE, kTable).text(NFTA_CHAIN_NAME, kChain).open(NFTA_CHAIN_HOOK);
  chain.be32(NFTA_HOOK_HOOKNUM, NF_INET_PRE_ROUTING)
      .be32(NFTA_HOOK_PRIORITY, static_cast<std::uint32_t>(kBeforeRouting))
      .close();
  chain.be32(NFTA_CHAIN_POLICY, NF_DROP).text(NFTA_CHAIN_TYPE, "filter");
  const auto own = [](std::uint8_t family, std::uint32_t offset, const std::string& address) {
    return Rule().meta_is(NFT_META_NFPROTO, family).payload_is(offset, address).accept().done();
  };
  return {chain,
          own(NFPROTO_IPV4, kDestination4, "\x7f"),  // 127.0.0.0/8 by its first byte
          own(NFPROTO_IPV4, kDestination4, raw_address(AF_INET, egress::kSandboxV4)),
          own(NFPROTO_IPV6, kDestination6, raw_address(AF_INET6, "::1")),
          own(NFPROTO_IPV6, kDestination6, raw_address(AF_INET6, egress::kSandboxV6)),
          Rule().meta_is(NFT_META_L4PROTO, IPPROTO_TCP).tproxy(tcp_port).accept().done(),
          Rule().meta_is(NFT_META_L4PROTO, IPPROTO_UDP).tproxy(udp_port).accept().done()};
}

// All or nothing: a batch is one transaction. Returns 0 or an errno.
int commit(const NetlinkSocket& netfilter, const std::vector<NetlinkMessage>& messages) {
  const nfgenmsg to = {AF_UNSPEC, NFNETLINK_V0, htons(NFNL_SUBSYS_NFTABLES)};
  std::string batch = NetlinkMessage(NFNL_MSG_BATCH_BEGIN, 0, &to, sizeof to).bytes(0);
  std::uint32_t sequence = 1;
  for (const NetlinkMessage& message : messages) {
    std::string bytes = message.bytes(sequence++);
    if (&message == &messages.back()) {
      nlmsghdr head = {};
      std::memcpy(&head, bytes.data(), sizeof head);
      head.nlmsg_flags |= NLM_F_ACK;
      std::memcpy(bytes.data(), &head, sizeof head);
    }
    batch += bytes;
  }
  batch += NetlinkMessage(NFNL_MSG_BATCH_END, 0, &to, sizeof to).bytes(sequence);
  return netfilter.request(batch);
}

void add_rules(std::uint16_t tcp_port, std::uint16_t udp_port) {
  const NetlinkSocket netfilter(NETLINK_NETFILTER);
  std::vector<NetlinkMessage> messages{table_message(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL)};
  const std::vector<NetlinkMessage> more = rules(tcp_port, udp_port);
  messages.insert(messages.end(), more.begin(), more.end());
  int error = commit(netfilter, messages);
  if (error == EEXIST) {
    messages.front() = table_message(NFT_MSG_DELTABLE, 0);
    messages.insert(messages.begin() + 1, table_message(NFT_MSG_NEWTABLE, NLM_F_CREATE));
    error = commit(NetlinkSocket(NETLINK_NETFILTER), messages);
  }
  if (error != 0)
    throw system_error("add the rules that bring connections to the gateway", error)
        .hint("network policies need a kernel with CONFIG_NF_TABLES_INET and CONFIG_NFT_TPROXY: modprobe nft_tproxy");
}

void set_option(int socket, int level, int option, const char* what) {
  const int on = 1;
  if (::setsockopt(socket, level, option, &on, sizeof on) != 0) throw system_error(what);
}

// One socket for both families, where the host has both.
UniqueFd open_socket(int type) {
  const int flags = type | SOCK_CLOEXEC | SOCK_NONBLOCK;
  UniqueFd socket(::socket(AF_INET6, flags, 0));
  const bool six = static_cast<bool>(socket);
  if (!six) socket.reset(::socket(AF_INET, flags, 0));
  if (!socket) throw system_error("open a socket in the sandbox");
  set_option(socket.get(), SOL_IP, IP_TRANSPARENT, "take connections for any address");
  if (six) {
    const int off = 0;
    if (::setsockopt(socket.get(), SOL_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0)
      throw system_error("take IPv4 connections, too");
  }
  if (type == SOCK_DGRAM) {
    set_option(socket.get(), SOL_IP, IP_RECVORIGDSTADDR, "be told whom datagrams are for");
    if (six) set_option(socket.get(), SOL_IPV6, IPV6_RECVORIGDSTADDR, "be told whom datagrams are for");
  }
  sockaddr_in6 any6 = {};
  any6.sin6_family = AF_INET6;
  sockaddr_in any4 = {};
  any4.sin_family = AF_INET;
  const auto* any = six ? reinterpret_cast<const sockaddr*>(&any6) : reinterpret_cast<const sockaddr*>(&any4);
  // At a free port: the sandbox may have one of its own at any that we would choose.
  if (::bind(socket.get(), any, six ? sizeof any6 : sizeof any4) != 0)
    throw system_error("bind a socket in the sandbox");
  return socket;
}

std::uint16_t port_of(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw system_error("read a socket's port");
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

UniqueFd open_raw(int family) {
  UniqueFd socket(::socket(family, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW));
  if (!socket) throw system_error("open a raw socket in the sandbox");
  return socket;
}

EgressSockets open_here() {
  EgressSockets sockets{open_socket(SOCK_STREAM), open_socket(SOCK_DGRAM), open_raw(AF_INET), {}};
  if (::listen(sockets.tcp.get(), kBacklog) != 0) throw system_error("listen in the sandbox");
  const NetlinkSocket route(NETLINK_ROUTE);
  // The rules come first: as long as there is no route there is nothing that they could miss.
  add_rules(port_of(sockets.tcp.get()), port_of(sockets.udp.get()));
  add_address(route, AF_INET, egress::kSandboxV4);
  add_route(route, AF_INET, egress::kSandboxV4);
  // A host without IPv6 has none to lead anywhere.
  sockets.raw6.reset(::socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW));
  if (!sockets.raw6) {
    sockets.raw6 = open_raw(AF_INET);
    return sockets;
  }
  try {
    add_address(route, AF_INET6, egress::kSandboxV6);
    add_route(route, AF_INET6, egress::kSandboxV6);
  } catch (const Error&) {
    // Switched off by sysctl: without a route nothing of it leaves the sandbox.
  }
  return sockets;
}

}  // namespace

EgressSockets open_egress(int place) {
  EgressSockets sockets;
  attempt("cannot give the sandbox its network", [&] {
    on_own_thread([&] {
      if (::setns(place, CLONE_NEWNET) != 0) throw system_error("join the sandbox's network namespace");
      sockets = open_here();
    });
  });
  return sockets;
}

std::string probe_egress() {
  try {
    on_own_thread([] {
      if (::unshare(CLONE_NEWNET) != 0) throw system_error("make a network namespace");
      const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      ifreq request = {};
      std::strcpy(request.ifr_name, "lo");
      request.ifr_flags = IFF_UP | IFF_RUNNING;
      if (!socket || ::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0) throw system_error("bring up lo");
      open_here();
    });
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace dsec::runners
