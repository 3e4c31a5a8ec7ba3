// The least that a sandbox can cost: bare system calls, no user namespace, no cgroup, no filter, nobody who watches.
//   bench_floor_sandbox create TREE ROUNDS   clone into namespaces, overlay and proc, pivot, execute /bin/true, wait
//   bench_floor_sandbox exec ROUNDS          fork and execute /bin/true, output to a pipe that is read to its end
// Prints microseconds for one round.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char* what) {
  fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
  _exit(1);
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void run_true(void) {
  char* argv[] = {"/bin/true", NULL};
  char* env[] = {NULL};
  execve(argv[0], argv, env);
  die("execute /bin/true");
}

static void inside(const char* tree) {
  char options[1024];
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("make mounts private");
  snprintf(options, sizeof options, "lowerdir=%s,upperdir=u,workdir=w", tree);
  if (mount("overlay", "m", "overlay", 0, options)) die("mount overlay");
  if (mount("proc", "m/proc", "proc", 0, NULL)) die("mount proc");
  if (chdir("m")) die("enter the root");
  if (syscall(SYS_pivot_root, ".", ".")) die("pivot_root");
  if (umount2(".", MNT_DETACH)) die("leave the old root");
  run_true();
}

static void create(const char* tree) {
  if (mkdir("u", 0755) || mkdir("w", 0755)) die("make directories");
  const unsigned long flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
  const long pid = syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
  if (pid < 0) die("clone");
  if (pid == 0) inside(tree);
  int status;
  if (waitpid((pid_t)pid, &status, 0) != pid || status != 0) die("run /bin/true");
  if (rmdir("w/work") || rmdir("w") || rmdir("u")) die("clean up");
}

static void execute(void) {
  int ends[2];
  char buffer[512];
  if (pipe2(ends, O_CLOEXEC)) die("make a pipe");
  const pid_t pid = fork();
  if (pid < 0) die("fork");
  if (pid == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    run_true();
  }
  close(ends[1]);
  while (read(ends[0], buffer, sizeof buffer) > 0) {
  }
  close(ends[0]);
  int status;
  if (waitpid(pid, &status, 0) != pid || status != 0) die("run /bin/true");
}

int main(int argc, char** argv) {
  const int creates = argc == 4 && !strcmp(argv[1], "create");
  if (!creates && !(argc == 3 && !strcmp(argv[1], "exec"))) {
    fprintf(stderr, "usage: bench_floor_sandbox create TREE ROUNDS | exec ROUNDS\n");
    return 2;
  }
  const int rounds = atoi(argv[argc - 1]);
  char work[] = "floor-XXXXXX";
  if (creates && (!mkdtemp(work) || chdir(work) || mkdir("m", 0755))) die("make a directory to work in");
  const double start = now_us();
  for (int round = 0; round < rounds; ++round) {
    if (creates) {
      create(argv[2]);
    } else {
      execute();
    }
  }
  printf("%.1f\n", (now_us() - start) / rounds);
  if (creates && (rmdir("m") || chdir("..") || rmdir(work))) die("clean up");
  return 0;
}
