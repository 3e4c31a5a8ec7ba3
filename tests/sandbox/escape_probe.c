/* Tries, inside a sandbox, what must not be possible there, with plain system calls.
 *
 *   probe_escape list              names of the groups
 *   probe_escape GROUP [KEY=VALUE...]
 *
 * One line per attempt: "denied NAME: REASON", or "ESCAPED NAME: WHAT HAPPENED". Exit 1 when any escaped. Each attempt
 * runs in a child of its own, so that one which ends its process ends only itself. Values tell what lies outside:
 *   marker=PATH      a file of the host
 *   abstract=NAME    an abstract unix socket on which the host listens
 *   port=NUMBER      a TCP port on 127.0.0.1 on which the host listens
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *marker = "/nonexistent-marker", *abstract_name = "", *port = "0";
static char said[512]; /* what an attempt has to tell when it succeeded */

/* An attempt returns 0 when it was denied (errno says how) and 1 when it worked. */
typedef int (*attempt_fn)(const char* argument);
struct attempt {
  const char *group, *name;
  attempt_fn run;
  const char* argument;
};

static int worked(long result) { return result >= 0; }

/* files -------------------------------------------------------------------------------------------------------- */

static int opens_for_writing(const char* path) { return worked(open(path, O_WRONLY | O_CLOEXEC)); }

/* Masked: it may be there, but it has nothing to tell. */
static int reads_something(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return 0;
  struct stat info;
  fstat(fd, &info);
  if (S_ISDIR(info.st_mode)) {
    char entries[4096];
    const long got = syscall(SYS_getdents64, fd, entries, sizeof entries);
    /* "." and ".." take 48 bytes. */
    return got > 48;
  }
  const ssize_t got = read(fd, said, 64);
  if (got > 0) snprintf(said, sizeof said, "read %zd bytes", got);
  if (got == 0) errno = 0;
  return got > 0;
}

static int opens_device(const char* path) { return worked(open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK)); }

static int makes_device(const char* numbers) {
  unsigned major_number = 0, minor_number = 0;
  char kind = 'c';
  sscanf(numbers, "%c%u:%u", &kind, &major_number, &minor_number);
  unlink("/tmp-device");
  if (mknod("/tmp-device", (kind == 'c' ? S_IFCHR : S_IFBLK) | 0600, makedev(major_number, minor_number)) != 0)
    return 0;
  return worked(open("/tmp-device", O_RDONLY | O_CLOEXEC));
}

static int sees_marker(const char* prefix) {
  char path[4096];
  snprintf(path, sizeof path, "%s%s", prefix, marker);
  return worked(open(path, O_RDONLY | O_CLOEXEC));
}

/* The classic: a root below the working directory, then up and up. It must end at the sandbox's own root. */
static int leaves_by_chroot(const char* unused) {
  (void)unused;
  mkdir("/jail", 0700);
  if (chroot("/jail") != 0) return 0;
  for (int i = 0; i < 64; ++i)
    if (chdir("..") != 0) return 0;
  if (chroot(".") != 0) return 0;
  return sees_marker("");
}

static int opens_by_handle(const char* unused) {
  (void)unused;
  struct {
    struct file_handle handle;
    unsigned char bytes[64];
  } it;
  int mount_id = 0;
  it.handle.handle_bytes = 64;
  if (name_to_handle_at(AT_FDCWD, "/", &it.handle, &mount_id, 0) != 0) {
    /* The handle of inode 2, the root of an ext4. */
    const uint32_t guess[2] = {2, 0};
    it.handle.handle_bytes = 8;
    it.handle.handle_type = 1;
    memcpy(it.bytes, guess, sizeof guess);
  }
  const int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return worked(open_by_handle_at(root, &it.handle, O_RDONLY));
}

static int writes_own_program(const char* path) { return worked(open(path, O_WRONLY | O_CLOEXEC)); }

/* Anything but 0, 1, 2 and the directory that is read here came from outside. */
static int has_other_descriptors(const char* unused) {
  (void)unused;
  DIR* directory = opendir("/proc/self/fd");
  if (directory == NULL) return 0;
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) {
    const int fd = atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fd <= 2 || fd == dirfd(directory)) continue;
    char link[64], target[256] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, target, sizeof target - 1) < 0) continue;
    snprintf(said, sizeof said, "%d is %s", fd, target);
    return 1;
  }
  errno = 0;
  return 0;
}

/* mounts ------------------------------------------------------------------------------------------------------- */

static int mounts_type(const char* type) {
  mkdir("/mnt-probe", 0700);
  return worked(mount("none", "/mnt-probe", type, 0, NULL));
}
static int binds(const char* unused) {
  (void)unused;
  mkdir("/mnt-probe", 0700);
  return worked(mount("/", "/mnt-probe", NULL, MS_BIND | MS_REC, NULL));
}
static int remounts(const char* path) { return worked(mount(NULL, path, NULL, MS_REMOUNT | MS_BIND, NULL)); }
static int unmounts(const char* path) { return worked(umount2(path, MNT_DETACH)); }
static int opens_filesystem(const char* type) { return worked(syscall(428 + 2, type, 0)); }
static int opens_tree(const char* path) { return worked(syscall(428, AT_FDCWD, path, 1 /* OPEN_TREE_CLONE */)); }
static int moves_mount(const char* path) { return worked(syscall(429, AT_FDCWD, path, AT_FDCWD, "/mnt-probe", 0)); }
static int sets_mount_attributes(const char* path) {
  const uint64_t attributes[4] = {0, 1 /* MOUNT_ATTR_RDONLY cleared */, 0, 0};
  return worked(syscall(442, AT_FDCWD, path, 0, attributes, sizeof attributes));
}
static int pivots(const char* unused) {
  (void)unused;
  return worked(syscall(SYS_pivot_root, ".", "."));
}

/* kernel ------------------------------------------------------------------------------------------------------- */

/* Calls by number with arguments of zero: denied means EPERM or ENOSYS, before the kernel looks at the arguments. */
static int reaches_call(const char* text) {
  const long result = syscall(atol(text), 0, 0, 0, 0, 0, 0);
  if (result >= 0) return 1;
  if (errno == EPERM || errno == ENOSYS) return 0;
  snprintf(said, sizeof said, "the kernel looked at its arguments: %s", strerror(errno));
  return 1;
}

static int sets_clock(const char* unused) {
  (void)unused;
  const struct timespec then = {1, 0};
  return worked(clock_settime(CLOCK_REALTIME, &then));
}
static int sets_host_name(const char* unused) {
  (void)unused;
  return worked(sethostname("owned", 5));
}
static int sets_personality(const char* unused) {
  (void)unused;
  return worked(personality(0x0400000 /* READ_IMPLIES_EXEC */));
}
static int types_into_terminal(const char* unused) {
  (void)unused;
  char letter = 'x';
  if (ioctl(0, TIOCSTI, &letter) == 0) return 1;
  /* ENOTTY would mean that a terminal could be typed into. */
  return errno != EPERM;
}
#if defined(__x86_64__)
static int calls_x32(const char* unused) {
  (void)unused;
  return worked(syscall(0x40000000 + SYS_getpid));
}
static int mounts_through_i386(const char* unused) {
  (void)unused;
  long result = 21; /* mount */
  __asm__ volatile("int $0x80"
                   : "+a"(result)
                   : "b"(0), "c"(0), "d"(0), "S"(0), "D"(0)
                   : "r8", "r9", "r10", "r11", "memory");
  const int number = -(int)result;
  errno = number;
  return result >= 0 || (number != EPERM && number != ENOSYS);
}
#endif

/* sockets ------------------------------------------------------------------------------------------------------ */

static int makes_socket(const char* text) {
  int family = 0, type = 0, protocol = 0;
  sscanf(text, "%d,%d,%d", &family, &type, &protocol);
  return worked(socket(family, type, protocol));
}
static int connects_to_host_port(const char* unused) {
  (void)unused;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const struct sockaddr_in address = {AF_INET, htons((uint16_t)atoi(port)), {htonl(INADDR_LOOPBACK)}, {0}};
  return worked(connect(fd, (const struct sockaddr*)&address, sizeof address));
}
static int connects_to_abstract_socket(const char* unused) {
  (void)unused;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const size_t length = strlen(abstract_name);
  memcpy(address.sun_path + 1, abstract_name, length);
  return worked(
      connect(fd, (const struct sockaddr*)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)));
}

/* processes ---------------------------------------------------------------------------------------------------- */

static int traces(const char* pid) { return worked(ptrace(PTRACE_SEIZE, atoi(pid), 0, 0)); }
static int reads_memory_of_init(const char* unused) {
  (void)unused;
  char byte;
  struct iovec here = {&byte, 1}, there = {(void*)0x400000, 1};
  if (process_vm_readv(1, &here, 1, &there, 1, 0) >= 0) return 1;
  /* EFAULT: allowed to look, only not there. */
  return errno == EFAULT;
}
static int opens_for_reading(const char* path) { return worked(open(path, O_RDONLY | O_CLOEXEC)); }
static int reads_link(const char* path) {
  const ssize_t got = readlink(path, said, sizeof said - 1);
  if (got >= 0) said[got] = '\0';
  return worked(got);
}
static int opens_below(const char* path) {
  DIR* directory = opendir(path);
  if (directory == NULL) return 0;
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    if (worked(openat(dirfd(directory), entry->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK))) {
      snprintf(said, sizeof said, "opened %s", entry->d_name);
      return 1;
    }
  }
  return 0;
}
static int kills_init(const char* unused) {
  (void)unused;
  kill(1, SIGKILL);
  kill(1, SIGSTOP);
  usleep(50000);
  char state[512] = "";
  const int fd = open("/proc/1/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, state, sizeof state - 1) <= 0) return 1;
  const char* end = strrchr(state, ')');
  if (end == NULL || end[2] == 'T' || end[2] == 'Z') {
    snprintf(said, sizeof said, "%s", state);
    return 1;
  }
  errno = 0;
  return 0;
}
static int has_foreign_processes(const char* unused) {
  (void)unused;
  /* Everything here descends from PID 1, which has no parent here. */
  FILE* status = fopen("/proc/1/status", "re");
  char line[256];
  while (status != NULL && fgets(line, sizeof line, status) != NULL) {
    if (strncmp(line, "PPid:", 5) != 0) continue;
    errno = 0;
    return atoi(line + 5) != 0;
  }
  return 1;
}
static int lowers_oom_score(const char* value) {
  const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  return worked(write(fd, value, strlen(value)));
}
static int raises_priority(const char* unused) {
  (void)unused;
  return worked(setpriority(PRIO_PROCESS, 0, -5));
}
static int becomes_real_time(const char* unused) {
  (void)unused;
  const struct sched_param parameters = {1};
  return worked(sched_setscheduler(0, SCHED_FIFO, &parameters));
}
static int raises_limit(const char* unused) {
  (void)unused;
  struct rlimit now;
  getrlimit(RLIMIT_NOFILE, &now);
  if (now.rlim_max >= 1u << 30) return 1;
  now.rlim_max *= 2;
  return worked(setrlimit(RLIMIT_NOFILE, &now));
}

static unsigned long long status_number(const char* field) {
  FILE* status = fopen("/proc/self/status", "re");
  char line[256];
  unsigned long long number = ~0ull;
  const size_t length = strlen(field);
  while (status != NULL && fgets(line, sizeof line, status) != NULL)
    if (strncmp(line, field, length) == 0 && line[length] == ':') number = strtoull(line + length + 1, NULL, 16);
  if (status != NULL) fclose(status);
  return number;
}
/* The eleven that root of a sandbox has: CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE
 * SYS_CHROOT SETFCAP. */
#define ALLOWED 0x800405fbull
static int has_capabilities_beyond(const char* field) {
  const unsigned long long present = status_number(field);
  snprintf(said, sizeof said, "%s is %llx", field, present);
  errno = 0;
  return (present & ~ALLOWED) != 0;
}
static int has_any_capability(const char* field) {
  const unsigned long long present = status_number(field);
  snprintf(said, sizeof said, "%s is %llx", field, present);
  errno = 0;
  return present != 0;
}
static int lacks_filter(void) { return status_number("Seccomp") != 2 || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1; }
static int gains_capability(const char* unused) {
  (void)unused;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  syscall(SYS_capget, &header, data);
  data[0].permitted |= 1u << CAP_SYS_ADMIN;
  data[0].effective |= 1u << CAP_SYS_ADMIN;
  return worked(syscall(SYS_capset, &header, data));
}

/* namespaces --------------------------------------------------------------------------------------------------- */

static int unshares(const char* flags) { return worked(unshare((int)strtol(flags, NULL, 16))); }
static int clones(const char* flags) {
  const long pid = syscall(SYS_clone, strtol(flags, NULL, 16) | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) _exit(0);
  return worked(pid);
}
static int clones_by_structure(const char* flags) {
  const uint64_t arguments[8] = {(uint64_t)strtol(flags, NULL, 16), 0, 0, 0, SIGCHLD, 0, 0, 0};
  const long pid = syscall(435, arguments, sizeof arguments);
  if (pid == 0) _exit(0);
  return worked(pid);
}
static int joins(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  return worked(setns(fd, 0));
}
static int joins_process(const char* pid) {
  const int fd = (int)syscall(434, atoi(pid), 0);
  if (fd < 0) return 0;
  return worked(setns(fd, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET));
}

#define NUMBER_TEXT(number) NUMBER_TEXT_(number)
#define NUMBER_TEXT_(number) #number

static const struct attempt attempts[] = {
    {"files", "write core_pattern", opens_for_writing, "/proc/sys/kernel/core_pattern"},
    {"files", "write modprobe", opens_for_writing, "/proc/sys/kernel/modprobe"},
    {"files", "write a sysctl of the network namespace", opens_for_writing, "/proc/sys/net/ipv4/ip_forward"},
    {"files", "write sysrq-trigger", opens_for_writing, "/proc/sysrq-trigger"},
    {"files", "write irq affinity", opens_for_writing, "/proc/irq/default_smp_affinity"},
    {"files", "write uevent_helper", opens_for_writing, "/sys/kernel/uevent_helper"},
    {"files", "write a CPU's state", opens_for_writing, "/sys/devices/system/cpu/cpu1/online"},
    {"files", "write transparent huge pages", opens_for_writing, "/sys/kernel/mm/transparent_hugepage/enabled"},
    {"files", "write KSM", opens_for_writing, "/sys/kernel/mm/ksm/run"},
    {"files", "read kcore", reads_something, "/proc/kcore"},
    {"files", "read kallsyms", reads_something, "/proc/kallsyms"},
    {"files", "read keys", reads_something, "/proc/keys"},
    {"files", "read kmsg", reads_something, "/proc/kmsg"},
    {"files", "read timer_list", reads_something, "/proc/timer_list"},
    {"files", "read interrupts", reads_something, "/proc/interrupts"},
    {"files", "read slabinfo", reads_something, "/proc/slabinfo"},
    {"files", "read vmallocinfo", reads_something, "/proc/vmallocinfo"},
    {"files", "read pagetypeinfo", reads_something, "/proc/pagetypeinfo"},
    {"files", "read kpageflags", reads_something, "/proc/kpageflags"},
    {"files", "read kpagecount", reads_something, "/proc/kpagecount"},
    {"files", "read kpagecgroup", reads_something, "/proc/kpagecgroup"},
    {"files", "read modules", reads_something, "/proc/modules"},
    {"files", "read config.gz", reads_something, "/proc/config.gz"},
    {"files", "read acpi", reads_something, "/proc/acpi"},
    {"files", "read scsi", reads_something, "/proc/scsi"},
    {"files", "read firmware", reads_something, "/sys/firmware"},
    {"files", "read powercap", reads_something, "/sys/devices/virtual/powercap"},
    {"files", "open mem", opens_device, "/dev/mem"},
    {"files", "open kmsg", opens_device, "/dev/kmsg"},
    {"files", "open kvm", opens_device, "/dev/kvm"},
    {"files", "open fuse", opens_device, "/dev/fuse"},
    {"files", "open loop-control", opens_device, "/dev/loop-control"},
    {"files", "open userfaultfd", opens_device, "/dev/userfaultfd"},
    {"files", "open the host's disk", opens_device, "/dev/vda"},
    {"files", "make a device of memory", makes_device, "c1:1"},
    {"files", "make a device of the kernel's log", makes_device, "c1:11"},
    {"files", "make a device of a disk", makes_device, "b254:0"},
    {"files", "see the host's file", sees_marker, ""},
    {"files", "see the host's file above the root", sees_marker, "/../../../.."},
    {"files", "see the host's file through PID 1", sees_marker, "/proc/1/root"},
    {"files", "see the host's file through PID 1's directory", sees_marker, "/proc/1/cwd/../../../.."},
    {"files", "leave by chroot", leaves_by_chroot, NULL},
    {"files", "open by handle", opens_by_handle, NULL},
    {"files", "write PID 1's program", writes_own_program, "/proc/1/exe"},
    {"files", "have descriptors of the host", has_other_descriptors, NULL},

    {"mounts", "mount tmpfs", mounts_type, "tmpfs"},
    {"mounts", "mount proc", mounts_type, "proc"},
    {"mounts", "mount sysfs", mounts_type, "sysfs"},
    {"mounts", "mount cgroup2", mounts_type, "cgroup2"},
    {"mounts", "mount cgroup", mounts_type, "cgroup"},
    {"mounts", "mount overlay", mounts_type, "overlay"},
    {"mounts", "mount bpf", mounts_type, "bpf"},
    {"mounts", "bind the root", binds, NULL},
    {"mounts", "remount /proc/sys writable", remounts, "/proc/sys"},
    {"mounts", "remount / ", remounts, "/"},
    {"mounts", "unmount /proc", unmounts, "/proc"},
    {"mounts", "uncover kcore", unmounts, "/proc/kcore"},
    {"mounts", "uncover /proc/sys", unmounts, "/proc/sys"},
    {"mounts", "fsopen tmpfs", opens_filesystem, "tmpfs"},
    {"mounts", "fsopen proc", opens_filesystem, "proc"},
    {"mounts", "clone the tree", opens_tree, "/"},
    {"mounts", "move a mount", moves_mount, "/proc"},
    {"mounts", "change a mount's attributes", sets_mount_attributes, "/proc/sys"},
    {"mounts", "pivot the root", pivots, NULL},

    {"kernel", "bpf", reaches_call, NUMBER_TEXT(SYS_bpf)},
    {"kernel", "perf_event_open", reaches_call, NUMBER_TEXT(SYS_perf_event_open)},
    {"kernel", "userfaultfd", reaches_call, NUMBER_TEXT(SYS_userfaultfd)},
    {"kernel", "keyctl", reaches_call, NUMBER_TEXT(SYS_keyctl)},
    {"kernel", "add_key", reaches_call, NUMBER_TEXT(SYS_add_key)},
    {"kernel", "request_key", reaches_call, NUMBER_TEXT(SYS_request_key)},
    {"kernel", "io_uring_setup", reaches_call, "425"},
    {"kernel", "io_uring_enter", reaches_call, "426"},
    {"kernel", "init_module", reaches_call, NUMBER_TEXT(SYS_init_module)},
    {"kernel", "finit_module", reaches_call, NUMBER_TEXT(SYS_finit_module)},
    {"kernel", "delete_module", reaches_call, NUMBER_TEXT(SYS_delete_module)},
    {"kernel", "kexec_load", reaches_call, NUMBER_TEXT(SYS_kexec_load)},
    {"kernel", "kexec_file_load", reaches_call, NUMBER_TEXT(SYS_kexec_file_load)},
    {"kernel", "reboot", reaches_call, NUMBER_TEXT(SYS_reboot)},
    {"kernel", "swapon", reaches_call, NUMBER_TEXT(SYS_swapon)},
    {"kernel", "swapoff", reaches_call, NUMBER_TEXT(SYS_swapoff)},
    {"kernel", "acct", reaches_call, NUMBER_TEXT(SYS_acct)},
    {"kernel", "quotactl", reaches_call, NUMBER_TEXT(SYS_quotactl)},
    {"kernel", "syslog", reaches_call, NUMBER_TEXT(SYS_syslog)},
    {"kernel", "fanotify_init", reaches_call, NUMBER_TEXT(SYS_fanotify_init)},
    {"kernel", "lookup_dcookie", reaches_call, NUMBER_TEXT(SYS_lookup_dcookie)},
    {"kernel", "process_madvise", reaches_call, "440"},
    {"kernel", "pidfd_getfd", reaches_call, "438"},
    {"kernel", "kcmp", reaches_call, NUMBER_TEXT(SYS_kcmp)},
    {"kernel", "vhangup", reaches_call, NUMBER_TEXT(SYS_vhangup)},
    {"kernel", "set the clock", sets_clock, NULL},
    {"kernel", "set the host name", sets_host_name, NULL},
    {"kernel", "change the personality", sets_personality, NULL},
    {"kernel", "type into the terminal", types_into_terminal, NULL},
#if defined(__x86_64__)
    {"kernel", "iopl", reaches_call, NUMBER_TEXT(SYS_iopl)},
    {"kernel", "ioperm", reaches_call, NUMBER_TEXT(SYS_ioperm)},
    {"kernel", "call by x32 numbers", calls_x32, NULL},
    {"kernel", "mount through the 32-bit table", mounts_through_i386, NULL},
#endif

    {"sockets", "packet socket", makes_socket, "17,3,768"},
    {"sockets", "raw IP socket", makes_socket, "2,3,1"},
    {"sockets", "raw IPv6 socket", makes_socket, "10,3,58"},
    {"sockets", "AF_ALG", makes_socket, "38,5,0"},
    {"sockets", "AF_VSOCK", makes_socket, "40,1,0"},
    {"sockets", "audit netlink", makes_socket, "16,3,9"},
    {"sockets", "the host's TCP port", connects_to_host_port, NULL},
    {"sockets", "the host's abstract socket", connects_to_abstract_socket, NULL},

    {"processes", "trace PID 1", traces, "1"},
    {"processes", "read the memory of PID 1", reads_memory_of_init, NULL},
    {"processes", "open the memory of PID 1", opens_for_reading, "/proc/1/mem"},
    {"processes", "read the environment of PID 1", reads_something, "/proc/1/environ"},
    {"processes", "read what PID 1 executes", reads_link, "/proc/1/exe"},
    {"processes", "open PID 1's descriptors", opens_below, "/proc/1/fd"},
    {"processes", "kill or stop PID 1", kills_init, NULL},
    {"processes", "see processes of the host", has_foreign_processes, NULL},
    {"processes", "lower oom_score_adj", lowers_oom_score, "-1000"},
    {"processes", "lower oom_score_adj a little", lowers_oom_score, "-1"},
    {"processes", "raise the priority", raises_priority, NULL},
    {"processes", "become real-time", becomes_real_time, NULL},
    {"processes", "raise a limit", raises_limit, NULL},
    {"processes", "effective capabilities", has_capabilities_beyond, "CapEff"},
    {"processes", "permitted capabilities", has_capabilities_beyond, "CapPrm"},
    {"processes", "bounding capabilities", has_capabilities_beyond, "CapBnd"},
    {"processes", "inheritable capabilities", has_any_capability, "CapInh"},
    {"processes", "ambient capabilities", has_any_capability, "CapAmb"},
    {"processes", "gain a capability", gains_capability, NULL},

    {"namespaces", "unshare user", unshares, "10000000"},
    {"namespaces", "unshare mount", unshares, "20000"},
    {"namespaces", "unshare pid", unshares, "20000000"},
    {"namespaces", "unshare net", unshares, "40000000"},
    {"namespaces", "unshare ipc", unshares, "8000000"},
    {"namespaces", "unshare uts", unshares, "4000000"},
    {"namespaces", "unshare cgroup", unshares, "2000000"},
    {"namespaces", "unshare time", unshares, "80"},
    {"namespaces", "clone user", clones, "10000000"},
    {"namespaces", "clone user and mount", clones, "10020000"},
    {"namespaces", "clone pid", clones, "20000000"},
    {"namespaces", "clone net", clones, "40000000"},
    {"namespaces", "clone3 user", clones_by_structure, "10000000"},
    {"namespaces", "clone3 at all", clones_by_structure, "0"},
    {"namespaces", "join own user namespace", joins, "/proc/self/ns/user"},
    {"namespaces", "join own mount namespace", joins, "/proc/self/ns/mnt"},
    {"namespaces", "join PID 1's mount namespace", joins, "/proc/1/ns/mnt"},
    {"namespaces", "join PID 1's network", joins, "/proc/1/ns/net"},
    {"namespaces", "join PID 1 by pidfd", joins_process, "1"},

    {"cgroups", "write cgroup.procs", opens_for_writing, "/sys/fs/cgroup/cgroup.procs"},
    {"cgroups", "write subtree_control", opens_for_writing, "/sys/fs/cgroup/cgroup.subtree_control"},
    {"cgroups", "write a v1 release agent", opens_for_writing, "/sys/fs/cgroup/memory/release_agent"},
    {"cgroups", "write the rdma release agent", opens_for_writing, "/sys/fs/cgroup/rdma/release_agent"},
    {"cgroups", "write the memory limit", opens_for_writing, "/sys/fs/cgroup/memory.max"},
    {"cgroups", "write the v1 memory limit", opens_for_writing, "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
    {"cgroups", "mount a v1 hierarchy", mounts_type, "cgroup"},
    {"cgroups", "mount the v2 hierarchy", mounts_type, "cgroup2"},
};
enum { kAttempts = sizeof attempts / sizeof attempts[0] };

/* Exit status of the child: 0 denied, 1 worked. */
static int try_it(const struct attempt* attempt) {
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    errno = 0;
    const int escaped = attempt->run(attempt->argument);
    const int number = errno;
    if (escaped) {
      printf("ESCAPED %s: %s\n", attempt->name, said[0] ? said : "it worked");
    } else {
      printf("denied %s: %s\n", attempt->name, number == 0 ? "nothing there" : strerror(number));
    }
    fflush(stdout);
    _exit(escaped);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) printf("denied %s: signal %d\n", attempt->name, WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) != 0;
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  for (int i = 2; i < argc; ++i) {
    if (strncmp(argv[i], "marker=", 7) == 0) marker = argv[i] + 7;
    if (strncmp(argv[i], "abstract=", 9) == 0) abstract_name = argv[i] + 9;
    if (strncmp(argv[i], "port=", 5) == 0) port = argv[i] + 5;
  }
  /* Some of these would do harm if they worked. */
  if (strcmp(argv[1], "list") != 0 && lacks_filter()) {
    puts("ESCAPED: no filter is in force here, so nothing is tried: is this a sandbox?");
    return 2;
  }
  const char* last = "";
  int tried = 0, escaped = 0;
  for (int i = 0; i < kAttempts; ++i) {
    if (strcmp(argv[1], "list") == 0) {
      if (strcmp(attempts[i].group, last) != 0) puts(attempts[i].group);
      last = attempts[i].group;
    } else if (strcmp(argv[1], attempts[i].group) == 0) {
      ++tried;
      escaped += try_it(&attempts[i]);
    }
  }
  if (strcmp(argv[1], "list") == 0) return 0;
  printf("%d attempts, %d escaped\n", tried, escaped);
  return tried == 0 ? 2 : escaped != 0;
}
