#pragma once

#include <stddef.h>
#include <stdint.h>

#include "core/base/spool_record.h"

/// What dsec and a sandbox's keeper say to each other over a stream socket: frames of a FrameHeader and `length` bytes.
/// Used by the freestanding keeper too, so nothing here needs a C library. Both ends are of one machine: native byte
/// order, no padding between fields. See man/dsec-keeper.7.md.
namespace dsec::runners::wire {

/// Raised when a frame changes its meaning; a keeper answers Hello with its own, and a newer dsec speaks the older one.
inline constexpr uint32_t kVersion = 3;

/// Frames longer than this are refused: argv and environment of one command may reach the kernel's usual 2 MiB, and
/// they stand in its recorded request as well.
inline constexpr uint32_t kMaxFrame = 16u << 20;

/// The control socket's name in a sandbox's directory.
inline constexpr char kSocketName[] = "control.sock";

enum class Type : uint16_t {
  // dsec to keeper
  Start = 1,     ///< what guest/config.h reads, with descriptors; only as the first frame on the keeper's descriptor 3
  Exec = 2,      ///< u32 ExecFlags, u16 rows, u16 columns, u64 timeout_ms, u64 output_limit, str user, str workdir,
                 ///< strs argv, strs env; 0 and empty: the sandbox's own; str op_id (empty: none), u32 origin (place in
                 ///< kOrigins), str request (JSON as it is recorded)
  Attach = 3,    ///< str exec_id
  Stdin = 4,     ///< bytes, for the command of this connection
  StdinEof = 5,  ///< nothing
  Resize = 6,    ///< u16 rows, u16 columns
  Signal = 7,    ///< u32 signal number
  Stop = 8,      ///< u64 grace_ms; answered by Ended
  List = 9,      ///< answered by Command for each that runs, then Done
  Wait = 10,     ///< answered by Ended
  SignalTo = 11,  ///< str exec_id, u32 signal number: on a connection of its own, since one whose input waits for the
                  ///< command is not read
  Begin = 12,  ///< str op_id, str kind, u32 origin, str request: an operation that the client carries out; answered by
               ///< Begun or Known. A connection may have several open, and those of one that ends are interrupted
  End = 13,    ///< u64 sequence, u32 EndFlags, str members (JSON, each with its comma before); answered by Recorded
  SessionOpen = 64,   ///< str name, then the fields of Exec for its shell; answered by Session once the shell listens
  SessionRun = 65,    ///< str session (id or name), u32 ExecFlags, u16 rows, u16 columns, u64 timeout_ms,
                      ///< u64 output_limit, str text, str op_id, u32 origin, str request; answered as Exec is
  SessionList = 66,   ///< answered by Session for each, then Done
  SessionClose = 67,  ///< str session; answered by Done when its processes are gone
  Root = 14,          ///< u32 root, u32 network namespace (none: the host's), u32 count, for each mount u32 descriptor
                      ///< (none: a file in memory), u32 MountKind, str target, str content of such a file; only after
                      ///< Start, and before its answer
  Pause = 20,         ///< answered by Done when everything is frozen and its memory was given back, or by Failed
  Resume = 21,        ///< answered by Done when it runs and has all its mounts, or by Failed; every other request
                      ///< resumes, too, but for those that only look (List, SessionList, Wait), record (Begin, End)
                      ///< or freeze
  Update =
      23,  ///< u64 lifetime_ms, u64 idle_ms, u64 idle_pause_ms, u64 output_limit (0: none), u32 UpdateFlags, u32 count,
           ///< for each group of a limit u32 parent, u32 tasks (descriptors), str name; answered by Done
  Machine = 24,  ///< with a descriptor: the channel of the sandbox's machine, whose guest is ready; before it nothing
                 ///< can be asked of the guest. Without (kStartConsole): nothing ever can. Answered by Done
  Relay = 25,    ///< u32 RelayFlags, then what opens a stream of the channel after its window, with a descriptor: a
                 ///< socket whose bytes are the stream's. Answered by Relayed when the stream has ended
  Control = 26,  ///< u16 channel::Type of a request on stream 0, then its fields; answered by Controlled
  Hold = 22,     ///< answered by Done when everything is frozen; it stays so until this connection ends
  Quiesce =
      27,  ///< str words, str mark, with a descriptor: the monitor of the sandbox's machine, which is to be saved.
           ///< Answered by Controlled with the guest's answer, after which nothing is said to the guest. When this
           ///< connection ends, by whatever, the words are written to the monitor (again while the line of its
           ///< answer that has the mark tells of an "error"), and the guest goes on
  Environment = 28,  ///< strs: what commands find in their environment from now on, in the place of what Start said.
                     ///< Answered by Done
  // keeper to dsec
  Started = 32,      ///< u32 pid of the keeper, u32 pid of PID 1, as the keeper sees them
  Failed = 33,       ///< u32 errno (0: none), str what was attempted
  ExecStarted = 34,  ///< str exec_id
  Stdout = 35,       ///< u64 time_us since the epoch, bytes
  Stderr = 36,       ///< the same
  Exited = 37,       ///< a Result, u32 whether its session has ended, u64 processes of the sandbox killed for lack of
                     ///< memory, u64 memory limit, u64 memory peak; the last of a command
  Attached = 38,     ///< spool descriptors and how much of each is valid: str exec_id, u64 x 2 bytes dropped of stdout,
                     ///< stderr so far, u32 count, u64 lengths
  Command = 39,      ///< str exec_id, u32 running, strs argv, u32 number of its session or 0
  Done = 40,         ///< nothing
  Ended = 41,        ///< nothing: state.json is final
  Known = 42,     ///< to Exec and Begin: nothing is done, as the log has an operation of this op_id. To Begin it comes
                  ///< when that one has ended
  Begun = 43,     ///< u64 sequence; 0: nothing is recorded
  Recorded = 44,  ///< u64 sequence
  Relayed = 46,   ///< u32 errno (0: none), str message (empty: it went well)
  Controlled = 47,  ///< u16 channel::Type of the answer, then its fields
  Session = 80,     ///< str id, str name, u32 whether it has a TTY, u64 time_us when it was opened, u32 commands so
                    ///< far, str exec_id of the one that runs or empty, strs argv of its shell
};

struct FrameHeader {
  uint32_t length;  ///< of what follows
  Type type;
  uint16_t reserved;
};
static_assert(sizeof(FrameHeader) == 8);

enum ExecFlags : uint32_t {
  kExecTty = 1,
  kExecStdin = 2,
  kExecMain = 4,
  kExecDetach = 8,  ///< nobody stays with it; with kExecStdin its input is open for who attaches
  kExecTied = 16,   ///< everything that it started ends with the connection that asked for it
};

enum EndFlags : uint32_t {
  kEndFailed = 1,
};

/// Who asks for an operation, in the order of model Origin.
inline constexpr const char* kOrigins[] = {"cli", "sdk", "session", "replay", "task", "gateway"};
inline constexpr uint32_t kOriginCount = 6;

enum StartFlags : uint32_t {
  kStartHostNetwork = 1,
  kStartUserNamespace = 2,
  kStartReadOnly = 4,
  kStartCoreScheduling = 8,  ///< shares no core with what is not of this sandbox
  kStartIdlePolicy = 16,     ///< its processes have SCHED_IDLE
  kStartIdle = 32,           ///< its groups are idle, but for when it is made, frozen or ended
  kStartMachine = 64,        ///< PID 1 is a VMM, which the frame's last fields tell: strs argv, u32 descriptor of what
                             ///< it says on its standard error, u32 descriptor of what its memory is at first (none:
                             ///< empty), str path as which it opens that; commands run in its guest, see
                             ///< guest_channel.h
  kStartEgress = 128,        ///< and what the guest's sandbox sends goes out in the machine's network namespace
  kStartLater = 256,         ///< /dev/pts and /dev/shm come with the first command, or Resume
  kStartConsole = 512,       ///< the VMM's standard input and output are the guest's console, which is kept as the
                             ///< output of a command. Its guest may lack an agent: then Machine comes without a
                             ///< channel. One that turns itself off has stopped
  kStartJoin = 1024,         ///< the sandbox is the machine that the keeper runs on: PID 1 is that of the machine,
                             ///< commands join its namespaces, and nothing is taken from them
};

enum RelayFlags : uint32_t {
  kRelayDetached = 1,  ///< the stream goes on without the connection that asked for it, until its socket is closed
};

enum UpdateFlags : uint32_t {
  kUpdateTimes = 1,   ///< what is idle counts from now
  kUpdateGroups = 2,  ///< these are the groups from now on, instead of those before
  kUpdateIdle = 4,    ///< kStartIdle from now on; without: not
};

/// How a command ended (model ExecResult).
enum class Cause : uint32_t { Exited, Signalled, TimedOut, OutOfMemory, CannotExecute, NotFound, Lost };

/// How one prepared mount is put into the sandbox.
enum class MountKind : uint32_t {
  Place,      ///< target is a directory that must be there, and no link
  Directory,  ///< target is made when it is missing
  File,       ///< target is made when it is missing
  Optional,   ///< left out when the target is missing
  Spent,      ///< not for the sandbox: a mount that its root was stacked from, to be put out of the way
};

using dsec::SpoolRecord;

/// As an output limit in Start: nothing is kept here, and whoever is attached keeps what it wants. Of a guest, whose
/// memory it would take.
inline constexpr uint64_t kNoSpool = ~uint64_t{0};

/// Spool files of a command, in spool/: <exec_id>.head, then for each stream two halves of its tail, of which the older
/// one is dropped when the younger is full: <exec_id>.<stream>a and <exec_id>.<stream>b.
inline constexpr unsigned kSpoolFiles = 5;

/// Reads fields in order; after the first that does not fit, `ok` is false and everything reads as empty.
class Reader {
 public:
  Reader(const void* data, size_t size) : at_(static_cast<const char*>(data)), end_(at_ + size) {}

  bool ok() const { return ok_; }
  size_t left() const { return ok_ ? static_cast<size_t>(end_ - at_) : 0; }
  const char* rest() const { return at_; }

  uint16_t u16() { return number<uint16_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }

  /// A string is its length, its bytes and a NUL, so that it can be handed to the kernel where it lies.
  struct String {
    const char* data;
    uint32_t size;
  };
  String str() {
    const uint32_t size = u32();
    if (!ok_ || left() < size_t{size} + 1 || at_[size] != '\0') return fail();
    const String result{at_, size};
    at_ += size_t{size} + 1;
    return result;
  }

 private:
  template <typename T>
  T number() {
    T value = 0;
    if (left() < sizeof value) {
      ok_ = false;
      return 0;
    }
    __builtin_memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  String fail() {
    ok_ = false;
    return {"", 0};
  }

  const char* at_;
  const char* end_;
  bool ok_ = true;
};

/// Appends fields to anything with append(const char*, size).
template <typename Sink>
class Writer {
 public:
  explicit Writer(Sink& sink) : sink_(sink) {}
  Writer& u16(uint16_t value) { return raw(&value, sizeof value); }
  Writer& u32(uint32_t value) { return raw(&value, sizeof value); }
  Writer& u64(uint64_t value) { return raw(&value, sizeof value); }
  Writer& str(const char* data, size_t size) {
    u32(static_cast<uint32_t>(size));
    raw(data, size);
    return raw("", 1);
  }
  Writer& raw(const void* data, size_t size) {
    sink_.append(static_cast<const char*>(data), size);
    return *this;
  }

 private:
  Sink& sink_;
};

}  // namespace dsec::runners::wire
