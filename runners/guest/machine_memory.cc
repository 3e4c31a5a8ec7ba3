#include "runners/guest/machine_memory.h"

#include <asm/ioctl.h>
#include <linux/audit.h>
#include <linux/eventpoll.h>
#include <linux/seccomp.h>
#include <linux/uio.h>

#include "runners/guest/keeper.h"
#include "runners/guest/sys.h"

// A machine that goes on from a saved one has that one's memory, which all that do share: each page as long as they do
// not write to it. QEMU maps the file privately, and opens it for writing all the same, with which whoever gets hold of
// a VMM could write into the memory of all the others. So nothing that it could open has that name: the kernel asks
// about that one call, and the VMM is given a descriptor that only reads.

namespace dsec::guest {
namespace {

// The VMM has few descriptors of its own, and its limit (resource_limits.h) is beyond that.
constexpr int kMemoryFd = 1000;
constexpr size_t kLongestPath = 128;

Source requests = {SourceKind::Memory, -1, 0, nullptr};

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

constexpr uint32_t argument(unsigned number) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args)) + 8 * number;
}

// Only what a plain open(2) for reading and writing asks for: QEMU opens all else with O_CLOEXEC.
//
// Pages that the guest does not use go back to the host. QEMU makes holes in the file then, and where that succeeds it
// drops its own copies of the pages. There is to be no hole, and the copies are to go: the call does nothing, and has
// succeeded.
const sock_filter kProgram[] = {
    {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, arch)},
    {BPF_JMP | BPF_JEQ | BPF_K, 0, 7, kArchitecture},
    {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
    {BPF_JMP | BPF_JEQ | BPF_K, 0, 2, __NR_openat},
    {BPF_LD | BPF_W | BPF_ABS, 0, 0, argument(2)},
    {BPF_JMP | BPF_JEQ | BPF_K, 4, 3, O_RDWR},
    {BPF_JMP | BPF_JEQ | BPF_K, 0, 2, __NR_fallocate},
    {BPF_LD | BPF_W | BPF_ABS, 0, 0, argument(0)},
    {BPF_JMP | BPF_JEQ | BPF_K, 2, 0, kMemoryFd},
    {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF},
    {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO},
};

bool is_memory(const seccomp_notif& request) {
  const Text& wanted = keeper.config.machine_memory;
  char path[kLongestPath] = {};
  const size_t size = size_t{wanted.size} + 1;
  if (size > sizeof path) return false;
  const iovec here = {path, size}, there = {reinterpret_cast<void*>(request.data.args[1]), size};
  const long got = sys(__NR_process_vm_readv, request.pid, &here, 1, &there, 1, 0);
  return got == static_cast<long>(size) && memcmp(path, wanted.data, size) == 0;
}

// From now on such a call fails.
void stop_answering() {
  unwatch(requests);
  close_fd(requests.fd);
  close_fd(keeper.config.machine_memory_fd);
  requests.fd = keeper.config.machine_memory_fd = -1;
}

}  // namespace

long install_memory_filter() {
  const sock_fprog filter = {sizeof kProgram / sizeof kProgram[0], const_cast<sock_filter*>(kProgram)};
  return sys(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
}

void watch_memory_requests(int fd) {
  requests.fd = fd;
  watch(requests, EPOLLIN);
}

void on_memory_request(uint32_t events) {
  // Nobody is left who could ask.
  if (events & EPOLLHUP) return stop_answering();
  seccomp_notif request = {};
  if (sys(__NR_ioctl, requests.fd, SECCOMP_IOCTL_NOTIF_RECV, &request) < 0) return;
  if (!is_memory(request)) {
    seccomp_notif_resp go_on = {request.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    sys(__NR_ioctl, requests.fd, SECCOMP_IOCTL_NOTIF_SEND, &go_on);
    return;
  }
  seccomp_notif_addfd give = {};
  give.id = request.id;
  give.flags = SECCOMP_ADDFD_FLAG_SETFD | SECCOMP_ADDFD_FLAG_SEND;
  give.srcfd = static_cast<uint32_t>(keeper.config.machine_memory_fd);
  give.newfd = kMemoryFd;
  give.newfd_flags = O_CLOEXEC;
  const long given = sys(__NR_ioctl, requests.fd, SECCOMP_IOCTL_NOTIF_ADDFD, &give);
  if (given < 0) {
    seccomp_notif_resp refusal = {request.id, 0, static_cast<int>(given), 0};
    sys(__NR_ioctl, requests.fd, SECCOMP_IOCTL_NOTIF_SEND, &refusal);
  }
  stop_answering();
}

}  // namespace dsec::guest
