#pragma once

#include <cstddef>
#include <cstdint>

/// What dsec and the egress gateway of a DSEC_HOME say to each other, and the addresses that both of them and the
/// sandboxes know. One SOCK_SEQPACKET connection at run/egress.sock carries requests and answers in turn: one JSON
/// object each, an attach with descriptors. man/dsec-network.7.md tells of it.
namespace dsec::egress {

inline constexpr char kSocketName[] = "egress.sock", kLockName[] = "egress.lock";
inline constexpr int kProtocol = 1;
inline constexpr std::size_t kLongestMessage = 1 << 20;

/// The descriptors of an attach, in this order. `Log` is open for appending.
enum AttachDescriptor { kTcpListener, kUdpSocket, kRawV4, kRawV6, kInitPidfd, kLogFile, kAttachDescriptors };

/// All of them in ranges that are never used on a network. A sandbox has kSandboxV4, the gateway answers at kGatewayV4,
/// host names stand at addresses from kNamesV4 on; with the same for IPv6.
inline constexpr char kSandboxV4[] = "192.0.2.2", kSandboxV6[] = "2001:db8::2";
inline constexpr char kGatewayV4[] = "192.0.2.1", kGatewayV6[] = "2001:db8::1";
inline constexpr std::uint32_t kNamesV4 = 0xc6120000;  // 198.18.0.0
inline constexpr char kNamesV6[] = "2001:db8:1::";
inline constexpr std::uint32_t kMostNames = 1u << 16;
inline constexpr std::uint16_t kProxyPort = 3128, kDnsPort = 53;

}  // namespace dsec::egress
