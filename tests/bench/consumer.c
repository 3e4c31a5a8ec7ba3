// What runs inside when limits are measured:
//   consumer wait    does nothing
//   consumer work    uses a processor for 10 ms
//   consumer spin    uses a processor
//   consumer touch   takes memory, 64 KiB after 64 KiB, and says a byte for each
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (!strcmp(argv[1], "wait")) {
    for (;;) pause();
  }
  if (!strcmp(argv[1], "work")) {
    struct timespec used = {0};
    while (used.tv_nsec < 10000000 && !used.tv_sec) clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return 0;
  }
  if (!strcmp(argv[1], "spin")) {
    for (volatile unsigned long turns = 0;; ++turns) {
    }
  }
  if (!strcmp(argv[1], "touch")) {
    const size_t step = 64 << 10;
    for (;;) {
      char* const more = mmap(NULL, step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (more == MAP_FAILED) return 1;
      memset(more, 1, step);
      if (write(1, ".", 1) != 1) return 1;
    }
  }
  return 2;
}
