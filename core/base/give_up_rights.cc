#include "core/base/give_up_rights.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/error.h"

namespace dsec {

void give_up_rights() {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) throw system_error("set no_new_privs");
  if (::geteuid() == 0) {
    for (unsigned capability = 0; ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0; ++capability) {
    }
    if (::syscall(SYS_setgroups, 0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0 ||
        ::setresuid(kNobody, kNobody, kNobody) != 0)
      throw system_error("become nobody");
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (::syscall(SYS_capset, &header, none) != 0) throw system_error("give up capabilities");
  // Others run as nobody, too: none of them shall look into what it knows.
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) throw system_error("become undumpable");
}

}  // namespace dsec
