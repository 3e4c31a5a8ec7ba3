#pragma once

#include <cstdint>

/// Numbers of the Network Block Device protocol (doc/proto.md of NetworkBlockDevice/nbd). All on the wire are
/// big-endian.
namespace dsec::layers::nbd {

inline constexpr std::uint64_t kGreeting = 0x4e42444d41474943;     ///< "NBDMAGIC"
inline constexpr std::uint64_t kOptionMagic = 0x49484156454f5054;  ///< "IHAVEOPT"
inline constexpr std::uint64_t kOptionReplyMagic = 0x3e889045565a9;
inline constexpr std::uint32_t kRequestMagic = 0x25609513, kReplyMagic = 0x67446698;

/// Of the handshake: the server's, which the client repeats.
inline constexpr std::uint16_t kFixedNewstyle = 1, kNoZeroes = 2;

/// Of an export.
inline constexpr std::uint16_t kHasFlags = 1, kSendFlush = 4, kSendFua = 8, kSendTrim = 32, kSendWriteZeroes = 64,
                               kCanMultiConn = 256;

namespace option {
inline constexpr std::uint32_t kExportName = 1, kAbort = 2, kList = 3, kInfo = 6, kGo = 7;
}
namespace reply {
inline constexpr std::uint32_t kAck = 1, kServer = 2, kInfo = 3;
inline constexpr std::uint32_t kUnsupported = 0x80000001, kInvalid = 0x80000003, kUnknown = 0x80000006,
                               kTooBig = 0x80000009;
}  // namespace reply
namespace info {
inline constexpr std::uint16_t kExport = 0, kBlockSize = 3;
}

namespace command {
inline constexpr std::uint16_t kRead = 0, kWrite = 1, kDisconnect = 2, kFlush = 3, kTrim = 4, kWriteZeroes = 6;
inline constexpr std::uint16_t kFua = 1, kNoHole = 2;  ///< flags
}  // namespace command
namespace error {
inline constexpr std::uint32_t kIo = 5, kInvalid = 22, kNoSpace = 28, kUnsupported = 95;
}

inline constexpr std::uint32_t kLeastBlock = 512, kPreferredBlock = 4096;
/// Of one READ or WRITE; what clients may send that were told of no limit.
inline constexpr std::uint32_t kMostPayload = 32u << 20;
inline constexpr std::uint32_t kMostOptionData = 64u << 10;

}  // namespace dsec::layers::nbd
