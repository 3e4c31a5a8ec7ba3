// What `./dev bench classes` runs inside sandboxes: a static program, since a sandbox of its own needs nothing else.
//   step COUNT    asks a server beside it, COUNT times with pauses, and prints how long each answer took in
//   microseconds load PERCENT  keeps one processor so busy, until it is killed
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void rest_us(long microseconds) {
  const struct timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000};
  nanosleep(&pause, NULL);
}

// Some milliseconds, longer than the kernel lets anybody go on while others wait for the processor.
static void work(void) {
  volatile uint64_t sum = 0;
  for (uint64_t i = 0; i < 8000000; ++i) sum += i * i;
}

static int step(long count) {
  int ends[2];
  char byte = 0;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  if (fork() == 0) {
    close(ends[0]);
    while (read(ends[1], &byte, 1) == 1) {
      work();
      if (write(ends[1], &byte, 1) != 1) break;
    }
    _exit(0);
  }
  close(ends[1]);
  for (long i = 0; i < count; ++i) {
    rest_us(5000);
    const uint64_t begin = now_us();
    if (write(ends[0], &byte, 1) != 1 || read(ends[0], &byte, 1) != 1) return 1;
    printf("%llu\n", (unsigned long long)(now_us() - begin));
  }
  return 0;
}

static int load(long percent) {
  puts("ready");
  fflush(stdout);
  for (;;) {
    const uint64_t end = now_us() + 200 * (uint64_t)percent;
    while (now_us() < end) {
    }
    if (percent < 100) rest_us(200 * (100 - percent));
  }
}

int main(int argc, char** argv) {
  const long number = argc == 3 ? atol(argv[2]) : 0;
  if (number > 0 && strcmp(argv[1], "step") == 0) return step(number);
  if (number > 0 && number <= 100 && strcmp(argv[1], "load") == 0) return load(number);
  fputs("usage: latency_step step COUNT | load PERCENT\n", stderr);
  return 2;
}
