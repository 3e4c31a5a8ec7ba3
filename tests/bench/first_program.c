// The first program of a guest that has nothing else: says that it runs, and ends the machine.
#include <fcntl.h>
#include <linux/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
  int console = open("/dev/console", O_WRONLY);
  if (console < 0) console = 1;
  if (write(console, "the first program runs\n", 23) < 0) return 1;
  syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_RESTART, 0);
  return 1;
}
