#include "runners/container/sandbox_thread.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <thread>

#include "core/base/error.h"
#include "runners/isolation/capabilities.h"

namespace dsec::runners {
namespace {

constexpr std::uint64_t kFileCapabilities = capability_bit(CAP_CHOWN) | capability_bit(CAP_DAC_OVERRIDE) |
                                            capability_bit(CAP_DAC_READ_SEARCH) | capability_bit(CAP_FOWNER) |
                                            capability_bit(CAP_FSETID) | capability_bit(CAP_SETFCAP);

/// Of this thread alone: the system calls, unlike the C library's functions, know of one thread only.
void become(const IdMap& ids) {
  ::syscall(SYS_setfsgid, ids.first);
  ::syscall(SYS_setfsuid, ids.first);
  // The call returns the previous id in any case; an id that no user can have asks for the present one.
  if (static_cast<std::uint32_t>(::syscall(SYS_setfsuid, -1)) != ids.first)
    throw failure("cannot act as root of the sandbox").hint("run dsec as root");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) throw system_error("read the capabilities of this process");
  for (int half = 0; half < 2; ++half)
    data[half].effective = data[half].permitted & static_cast<std::uint32_t>(kFileCapabilities >> (32 * half));
  if (::syscall(SYS_capset, &header, data) != 0) throw system_error("give up capabilities");
}

}  // namespace

void as_sandbox_root(const IdMap& ids, const std::function<void()>& work) {
  std::exception_ptr failed;
  std::thread thread([&] {
    try {
      become(ids);
      work();
    } catch (...) {
      failed = std::current_exception();
    }
  });
  thread.join();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace dsec::runners
