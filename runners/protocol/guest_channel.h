#pragma once

#include <stddef.h>
#include <stdint.h>

/// What dsec and the agent of a virtual machine say to each other over one byte channel: a virtio-serial port or a
/// vsock connection. The channel carries frames of a ChannelHeader and `length` bytes; each belongs to a stream. Stream
/// 0 is control, every other one reaches a service of the guest, and the first service is the guest's keeper, which
/// speaks wire.h there as it does over a container's control socket. Freestanding, little-endian, no padding between
/// fields; strings and lists are those of wire.h. See man/dsec-guest-channel.7.md.
namespace dsec::runners::channel {

/// Raised when a frame changes its meaning. Each end says its own in Hello and Welcome.
inline constexpr uint32_t kVersion = 1;
inline constexpr uint64_t kMagic = 0x31304c4e48435344;  // "DSCHNL01"

/// The name of the virtio-serial port, and the vsock port that the agent listens at.
inline constexpr char kPortName[] = "dsec.channel";
inline constexpr uint32_t kVsockPort = 7702;

/// One frame of Data holds up a control frame that is behind it; this bounds for how long.
inline constexpr uint32_t kMaxData = 32u << 10;
/// Of every other frame: Configure holds an environment.
inline constexpr uint32_t kMaxFrame = 4u << 20;
inline constexpr uint32_t kMaxStreams = 1024;

/// Streams that the agent opens have numbers with this bit, each greater than the one before: frames of dsec for one
/// that has just ended must not meet another.
inline constexpr uint32_t kOpenedByGuest = 1u << 31;
/// Of them at a time: connections, and flows of datagrams.
inline constexpr uint32_t kMaxConnections = 1152, kMaxFlows = 384;
/// Bytes that either end takes of such a stream before it has given any credit. Less than a quarter of them is used up
/// and not told yet: a datagram fits into the rest.
inline constexpr uint32_t kConnectionWindow = 64u << 10, kFlowWindow = 128u << 10;
/// Of UDP; on a stream each has its length before it (u16).
inline constexpr uint32_t kMaxDatagram = 65507;

/// Bytes that the agent takes of a new stream before it has given any credit.
inline constexpr uint32_t kGuestWindow = 256u << 10;
/// Credit that is never used up: more would overflow what counts it.
inline constexpr uint32_t kMaxWindow = 16u << 20;

enum class Type : uint16_t {
  // stream 0, dsec to agent. Each is answered by the frame named, or by Failed, in the order of the requests.
  Hello = 1,       ///< u64 kMagic, u32 kVersion, u64 wall clock in us, str random bytes for the kernel's generator.
                   ///< The first frame, and the first after a restored snapshot: all streams of before are gone, but
                   ///< what the keeper served goes on, heard by nobody. Answered by Welcome
  Configure = 2,   ///< what Configuration below says; once. Answered by Ready
  Statistics = 3,  ///< nothing; answered by Figures
  Quiesce = 4,     ///< nothing; freezes what runs, writes the disk out and freezes its filesystem. Answered by Done,
                   ///< after which the agent sends nothing until Thaw or Hello. Also before Configure: a guest that was
                   ///< saved then goes on with Hello and Configure
  Thaw = 5,        ///< u64 wall clock in us; answered by Done
  Renew = 6,       ///< str machine id (empty: as it is), str host name (empty: as it is), str random bytes, strs
                   ///< environment (none: as it is); for a guest that was restored from a snapshot, between Hello and
                   ///< Thaw. Answered by Done
  PowerOff = 7,    ///< nothing; ends everything inside, writes the disk out. The channel ends, and nothing answers
  Rewrite = 8,     ///< str path, str content; of a file of Configure, which has this content from now on. Answered by
                   ///< Done
  Clock = 9,       ///< u64 wall clock in us, after the machine stood still without knowing it; what rests goes on.
                   ///< Answered by Done
  Rest = 10,  ///< nothing; before the machine is frozen from outside: what runs stands still until Clock, the disk is
              ///< written out, and what the kernel has cached becomes free memory. Answered by Done
  // stream 0, agent to dsec
  Welcome = 32,  ///< u64 kMagic, u32 kVersion, u64 us since the kernel began, u64 bytes of memory, str kernel release,
                 ///< u32 AgentState
  Ready = 33,    ///< u64 us since the kernel began: PID 1 of the sandbox runs, and its keeper answers
  Failed = 34,   ///< u32 errno (0: none), str what was attempted, str on what
  Done = 35,     ///< nothing
  Figures = 36,  ///< see Figure: u32 count, for each u32 Figure, u64
  Ended = 37,    ///< str reason; unasked: the sandbox has ended by itself. The keeper's clients have heard the results
  // streams, either way
  Open = 64,    ///< dsec to agent, on a number that is not in use: u32 window (1 or more bytes that dsec takes before
                ///< it gives credit), u16 Service, and what the service wants. Agent to dsec for Egress alone, on a
                ///< number of its own and without a window, which is known
  Data = 65,    ///< bytes, never more than the receiver has given credit for
  Credit = 66,  ///< u32 bytes more that the other end may send
  Eof = 67,     ///< nothing more will be sent, while the other direction goes on
  Closed = 68,  ///< u32 errno (0: none), str message (lines: the attempt, then its causes; empty: it went well). The
                ///< last frame of a stream from the agent; its number is free. From dsec: it lost interest, and may use
                ///< the number again once the agent's Closed has come, which always does. Of a connection that goes
                ///< out, either way with an errno: it was reset
};

enum class Service : uint16_t {
  Keeper = 1,   ///< wire.h from Exec to Done, without the frames that carry descriptors (Start, Root, Update). Attached
                ///< comes without its files: what was said before is not in the guest
  CopyOut = 2,  ///< str path, str name (empty: its own), u64 owner (kNoOwner: as they are); a tar stream comes
  CopyIn = 3,   ///< str path, str name, u64 owner; a tar stream goes, Eof ends it, and Closed tells how it went
  Connect = 4,  ///< u16 port: a TCP connection to the loopback of the sandbox, IPv4 then IPv6
  Diff = 5,    ///< nothing; what the writable layer changes comes, sorted by path: for each u32 'A', 'C' or 'D' (added,
               ///< changed, deleted), str path
  Watch = 6,   ///< u32 whether with what lies below, str path; events come until dsec closes the stream or what is
               ///< watched is gone: for each u32 engine::FileEvent::Kind, u32 whether it is a directory, str path, str
               ///< from. The first is kWatchReady: from then on nothing is missed
  Egress = 7,  ///< opened by the agent, with kEgress: u16 Protocol, u16 port, str address (16 bytes, IPv4 mapped); what
               ///< the sandbox sends there, and what is answered
  Written = 8,  ///< u32 whether with what lies below; a tar stream of the writable layer comes, see
                ///< runners/container/written_tar.h
};
enum class Protocol : uint16_t { Tcp = 6, Udp = 17 };
inline constexpr uint64_t kNoOwner = ~uint64_t{0};
inline constexpr uint32_t kWatchReady = 0xffff;

enum class AgentState : uint32_t { Waiting, Running, Quiesced, Ended };

enum ConfigureFlags : uint32_t {
  kReadOnly = 1,       ///< without a writable disk
  kPrivileged = 2,     ///< root inside is root of the guest: nothing protects the agent from it
  kGuestNetwork = 4,   ///< the sandbox has the guest's own network, for guests with a NIC. Without: a loopback only
  kWholeMachine = 16,  ///< there is no sandbox in the machine: commands run in its system as it is. Of an agent that
                       ///< is a service, with kReadOnly, kPrivileged and kGuestNetwork and without all that would
                       ///< be mounted
  kEgress = 8,         ///< what the sandbox sends anywhere but to itself is told to dsec, by Egress
};

/// Fields of Configure, in this order:
///   u32 kVersion, u32 ConfigureFlags
///   str id, str hostname, str machine id (empty: the layers' own)
///   strs environment, str working directory, str user                  as in wire::Type::Start
///   u32 stop signal, u64 wall clock in us, u64 capabilities   (Hello may have waited in the port while the guest
///   booted) str seccomp program (struct sock_filter; kPrivileged: not used, may be empty) strs masked paths, strs
///   read-only paths u32 count, for each u32 resource, u64 soft, u64 hard                                      limits
///   of setrlimit(2) str oom_score_adj of commands u32 image count, bottom to top: strs devices meta first, then those
///   that hold its data str writable device (kReadOnly: empty)                              ext4 strs limits,
///   "FILE=VALUE" of the sandbox's cgroup, e.g. "pids.max=512" u32 tmpfs count, for each str target, u64 size (0: the
///   kernel's default) u32 file count, for each str path (absolute), str content           bound over what is there,
///   e.g. /etc/hosts u32 directory count, for each str target, str device                 ext4, e.g. Docker's data root
/// A device is a path ("/dev/vdb", "/dev/pmem0") or else the serial of a virtio-blk drive. /dev/pmem is mounted with
/// DAX.
struct Configuration;

/// The sandbox's figures, in the units of the files they are read from.
enum class Figure : uint32_t {
  MemoryCurrent = 1,
  MemoryPeak,
  MemoryAnonymous,
  MemoryFile,
  CpuUsec,
  Pids,
  OomKills,
  GuestMemoryTotal,
  GuestMemoryAvailable,
  GuestMemoryFree,
  DiskBytes,  ///< of the writable disk in use
  DiskLimit,
};

struct ChannelHeader {
  uint32_t length;  ///< of what follows
  Type type;
  uint16_t reserved;  ///< 0
  uint32_t stream;
};
static_assert(sizeof(ChannelHeader) == 12);

/// Whether a header may begin a frame at all: the answer to anything else is to give the channel up, since nothing
/// tells where the next frame would begin.
constexpr bool is_possible(const ChannelHeader& header) {
  if (header.reserved != 0) return false;
  const auto type = static_cast<unsigned>(header.type);
  const bool control = (type >= 1 && type <= 10) || (type >= 32 && type <= 37);
  const bool of_stream = type >= 64 && type <= 68;
  if (!control && !of_stream) return false;
  if (control != (header.stream == 0)) return false;
  return header.length <= (header.type == Type::Data ? kMaxData : kMaxFrame);
}

enum class Parsed { Frame, More, Garbage };

/// Takes the frame that `size` bytes at `data` begin with: Frame fills `header`, and its fields follow at
/// data + sizeof header.
inline Parsed parse_frame(const char* data, size_t size, ChannelHeader& header) {
  if (size < sizeof header) return Parsed::More;
  __builtin_memcpy(&header, data, sizeof header);
  if (!is_possible(header)) return Parsed::Garbage;
  return size - sizeof header < header.length ? Parsed::More : Parsed::Frame;
}

}  // namespace dsec::runners::channel
