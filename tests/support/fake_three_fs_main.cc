// fake_three_fs MOUNT-POINT [no-rings]: a fake 3FS until SIGTERM or SIGINT; then tells how much was read in which way.
#include <signal.h>

#include <iostream>
#include <string_view>

#include "core/base/error.h"
#include "tests/support/fake_three_fs.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  try {
    dsec::test::FakeThreeFs three_fs(argv[1]);
    if (argc > 2 && std::string_view(argv[2]) == "no-rings") three_fs.interface_version = 0;
    std::cout << "mounted" << std::endl;
    int signal = 0;
    sigwait(&ends, &signal);
    std::cout << "rings " << three_fs.rings().bytes << " fuse " << three_fs.bytes_read << std::endl;
  } catch (const dsec::Error& error) {
    std::cerr << error.message() << '\n';
    return 1;
  }
}
