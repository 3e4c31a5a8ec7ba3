#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

/// The rings of the 3FS client ("USRBIO") as they lie in shared memory, and how one is made known to it. The constants
/// and layouts are facts about another program, each with the file of 3FS (commit e2cef82 of 2026-03-27) that it was
/// read in. They hold for version 1 of the client's ioctl interface, and nothing here is used before the client has
/// named that version. Integers are of the machine's own byte order; sizes are those of x86-64 and arm64.
namespace dsec::registry::usrbio {

/// _IOR('h', 3, u32): the version of the interface. src/lib/api/fuse.h, src/fuse/FuseOps.cc.
inline constexpr unsigned long kVersionRequest = 0x80046803;
inline constexpr std::uint32_t kVersion = 1;

/// Below the mount point: whoever makes a symlink here registers the memory that it names. src/fuse/FuseOps.cc.
inline constexpr std::string_view kRegister = "3fs-virt/iovs";
/// In that directory a symlink to the semaphore that wakes the client. src/fuse/IoRing.h (semName, semPath).
inline constexpr std::string_view kWakeLink = "submit-ios";
/// Where the client looks for shared memory, and where glibc keeps the semaphore. src/fuse/IovTable.cc (linkPref),
/// src/fuse/IoRing.h (semPath).
inline constexpr std::string_view kMemory = "/dev/shm/", kWakePrefix = "/dev/shm/sem.";

/// What follows the id (a UUID with dashes, in lower case) in the name of a ring's link: "r0" a ring for reading whose
/// requests are done as soon as possible, "t0" no waiting for more of them, "f10" (binary) flag 2: a hole is ENODATA
/// instead of zeros. src/lib/api/UsrbIo.cc (hf3fs_iovcreate_general), src/fuse/IovTable.cc (parseKey),
/// src/lib/api/hf3fs_usrbio.h (HF3FS_IOR_FORBID_READ_HOLES).
inline constexpr std::string_view kRingAttributes = ".r0.t0.f10";

/// A ring of n requests has n + 1 places, one of which stays empty. Its memory: four positions, n + 1 requests, n + 1
/// results, n + 1 submissions, a semaphore that the client makes and posts for results, 4096 bytes to spare. The client
/// takes n from the size of the memory, so that it must be exactly this. src/fuse/IoRing.h (IoRing, bytesRequired,
/// ioRingEntries).
struct Positions {
  std::int32_t submission_head;  ///< ours: where the next submission goes
  std::int32_t submission_tail;  ///< the client's: the first that it still needs
  std::int32_t result_head;      ///< the client's: where its next result goes
  std::int32_t result_tail;      ///< ours: the first that we have not taken
};
/// IoArgs.
struct Request {
  std::uint8_t memory_id[16];
  std::uint64_t memory_offset;
  std::uint64_t inode;  ///< st_ino
  std::uint64_t file_offset;
  std::uint64_t length;
  std::uint64_t tag;  ///< comes back with the result
};
/// IoCqe.
struct Result {
  std::int32_t slot;  ///< of the request
  std::int32_t reserved;
  std::int64_t result;  ///< bytes, fewer at the end of the file; or -errno
  std::uint64_t tag;
};
/// IoSqe.
struct Submission {
  std::int32_t slot;
  std::int32_t padding;
  std::uint64_t tag;
};
static_assert(sizeof(Positions) == 16 && sizeof(Request) == 56 && sizeof(Result) == 24 && sizeof(Submission) == 16);

/// Semaphores are those of glibc (sem_t; struct new_sem in its sysdeps/nptl/internaltypes.h, the same since 2.21): they
/// begin with 32 bits of value, on which waiters sleep. More posts than these wake nobody who is not awake.
inline constexpr std::size_t kSemaphoreSize = 32;
inline constexpr std::uint32_t kManyPosts = 1 << 30;

constexpr std::size_t ring_size(std::size_t requests) {
  return sizeof(Positions) + (requests + 1) * (sizeof(Request) + sizeof(Result) + sizeof(Submission)) + kSemaphoreSize +
         4096;
}

/// A ring in memory of ring_size(requests) bytes.
struct Ring {
  Positions* positions;
  Request* requests;
  Result* results;
  Submission* submissions;

  Ring(std::byte* memory, std::size_t requests_in_it) {
    const std::size_t places = requests_in_it + 1;
    positions = reinterpret_cast<Positions*>(memory);
    requests = reinterpret_cast<Request*>(memory + sizeof(Positions));
    results = reinterpret_cast<Result*>(requests + places);
    submissions = reinterpret_cast<Submission*>(results + places);
  }
};

}  // namespace dsec::registry::usrbio
