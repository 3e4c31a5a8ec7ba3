// Runs inside a sandbox as its root and tries to get hold of the processes that bring commands in, while they are on
// their way ("watch"), to stop them there ("stop"), or to keep the end of every command to itself ("hold"). Ends when
// /tmp/enough exists. Prints a line for each thing it could read of them, and at the end how often it met one.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char name[64];

// Whether the process is still ours: after its exec it is the sandbox's own, and open to its root.
static int on_its_way(int pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/comm", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t size = read(fd, name, sizeof name - 1);
  close(fd);
  if (size <= 0) return 0;
  name[size] = 0;
  return !strncmp(name, "dsec-", 5);
}

// The kernel opens a process to its own user before it gives it its new name: then this already is the sandbox's
// program, and what could be read is the sandbox's own.
static int runs_own_program(int pid) {
  char path[64], program[256];
  snprintf(path, sizeof path, "/proc/%d/exe", pid);
  const ssize_t size = readlink(path, program, sizeof program - 1);
  return size > 5 && !strncmp(program, "/bin/", 5);
}

static void tell(int pid, const char* what) {
  if (on_its_way(pid) && !runs_own_program(pid)) printf("LEAK %s of %d %s", what, pid, name);
}

static void try_to_read(int pid, const char* file) {
  char path[64], bytes[64];
  snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const off_t place = strcmp(file, "mem") ? 0 : 0x400000;  // where its program lies
  if (pread(fd, bytes, sizeof bytes, place) > 0) tell(pid, file);
  close(fd);
}

static void try_everything(int pid) {
  char path[64], bytes[64];
  static const char* const files[] = {"mem", "environ", "auxv", "maps", "exe", "pagemap", "syscall", "stack"};
  for (unsigned i = 0; i < sizeof files / sizeof *files; ++i) try_to_read(pid, files[i]);
  static const char* const links[] = {"exe", "cwd", "root", "fd/0", "fd/3"};
  for (unsigned i = 0; i < sizeof links / sizeof *links; ++i) {
    snprintf(path, sizeof path, "/proc/%d/%s", pid, links[i]);
    if (readlink(path, bytes, sizeof bytes) > 0) tell(pid, links[i]);
  }
  snprintf(path, sizeof path, "/proc/%d/exe", pid);
  const int exe = open(path, O_WRONLY | O_CLOEXEC);
  if (exe >= 0) tell(pid, "exe for writing");
  if (exe >= 0) close(exe);
  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  const int mem = open(path, O_RDWR | O_CLOEXEC);
  if (mem >= 0) tell(pid, "mem for writing");
  if (mem >= 0) close(mem);
  struct iovec here = {bytes, sizeof bytes}, there = {(void*)0x400000, sizeof bytes};
  if (process_vm_readv(pid, &here, 1, &there, 1, 0) > 0) tell(pid, "process_vm_readv");
  if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) {
    tell(pid, "ptrace");
    ptrace(PTRACE_INTERRUPT, pid, 0, 0);
    // It may be the command by now, whose end would be held up by its tracer.
    if (waitpid(pid, NULL, __WALL) == pid) ptrace(PTRACE_DETACH, pid, 0, 0);
  }
  const int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
  if (pidfd >= 0) {
    for (int fd = 0; fd < 8; ++fd) {
      const int copy = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
      if (copy < 0) continue;
      tell(pid, "a descriptor");
      close(copy);
    }
    close(pidfd);
  }
}

int main(int argc, char** argv) {
  const int stop = argc == 2 && !strcmp(argv[1], "stop");
  const int hold = argc == 2 && !strcmp(argv[1], "hold");
  struct stat enough;
  long met = 0;
  puts("ready");
  fflush(stdout);
  while (stat("/tmp/enough", &enough) != 0) {
    DIR* const proc = opendir("/proc");
    if (!proc) return 1;
    for (struct dirent* entry; (entry = readdir(proc));) {
      const int pid = atoi(entry->d_name);
      if (hold && pid > getpid()) ptrace(PTRACE_SEIZE, pid, 0, 0);
      if (pid <= 0 || pid == getpid() || !on_its_way(pid)) continue;
      if (pid != 1) ++met;
      if (stop) {
        if (pid != 1) kill(pid, SIGSTOP);
      } else if (!hold) {
        try_everything(pid);
      }
    }
    closedir(proc);
    fflush(stdout);
  }
  printf("met %ld\n", met);
  return 0;
}
