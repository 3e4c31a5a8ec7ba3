#include "runners/guest/agent/agent.h"
#include "runners/guest/init.h"
#include "runners/guest/keeper.h"
#include "runners/guest/sys.h"

namespace {

bool same(const char* left, const char* right) {
  while (*left && *left == *right) ++left, ++right;
  return *left == *right;
}

void say(const char* text) { dsec::guest::write_fd(2, text, strlen(text)); }

}  // namespace

// `stack`: argc, the arguments and a null pointer, as execve(2) leaves them.
extern "C" [[noreturn]] void dsec_start(long* stack) {
  const long count = stack[0];
  char** const arguments = reinterpret_cast<char**>(stack + 1);
  // Whoever runs this program inside a sandbox gets nothing by it: no role works without what only the keeper hands
  // over.
  if (count == 2 && same(arguments[1], "init") && dsec::guest::sys(__NR_getpid) == 1) {
    dsec::guest::exit_now(dsec::guest::run_init());
  }
  // As the kernel starts it from an initramfs.
  if (count >= 1 && same(arguments[0], "/init") && dsec::guest::sys(__NR_getpid) == 1) dsec::guest::run_agent();
  // As a service of a system: without the port of dsec, which only root can open, it does nothing.
  if (count == 2 && same(arguments[1], "agent")) dsec::guest::run_service();
  if (count == 3 && same(arguments[1], "keeper")) dsec::guest::exit_now(dsec::guest::run_keeper(arguments[2]));
  say("dsec-init is started by dsec: see dsec-keeper(7)\n");
  dsec::guest::exit_now(2);
}
