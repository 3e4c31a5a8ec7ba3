#pragma once

/// What dsec and the loader of a home say to each other, and what the loader's processes find open. One SOCK_SEQPACKET
/// connection at run/loader.sock carries requests and answers in turn, one JSON object each; man/dsec-loader.7.md tells
/// of it.
namespace dsec::registry {

inline constexpr char kLoaderProgram[] = "dsec-loader";
inline constexpr char kLoaderSocket[] = "loader.sock", kLoaderLock[] = "loader.lock", kLoaderLog[] = "loader.log";
inline constexpr int kLoaderProtocol = 1;

/// Descriptors: those that dsec starts it with, and those that holder and server have in common. `Link` is each one's
/// end of a pair of sockets, which tells it of the other's death.
enum LoaderDescriptor {
  kListenerFd = 3,
  kProcsFd = 4,
  kLinkFd = 4,
  kFuseFd = 5,
  kRootFd = 6,
  kMemoryFd = 7,
  kReadyFd = 8
};

}  // namespace dsec::registry
