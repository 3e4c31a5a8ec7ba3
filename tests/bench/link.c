// A link between this network namespace and that of another process, of so many bytes a second and with such a delay in
// each direction, until it is killed: `link PID RATE DELAY_US`. Two TUN devices named "dsec-bench", packets carried
// from one to the other and released when their time has come. Works where the kernel has no netem. Segments stay as
// large as TCP makes them. Prints a line when it is up.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { kPackets = 1024, kLargest = 10 + 65536, kHeader = 10 };

struct packet {
  uint64_t due;
  size_t size;
  char* bytes;
};

// One direction: a thread reads, another one writes when it is time.
struct direction {
  int from, to;
  double rate;
  uint64_t delay, free_at;
  struct packet ring[kPackets];
  unsigned head, tail;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
};

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void must(int good, const char* what) {
  if (good) return;
  perror(what);
  exit(1);
}

static int open_tun(void) {
  const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  must(fd >= 0, "open /dev/net/tun");
  struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
  strcpy(request.ifr_name, "dsec-bench");
  must(ioctl(fd, TUNSETIFF, &request) == 0, "TUNSETIFF");
  must(ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) == 0, "TUNSETOFFLOAD");
  return fd;
}

static void* receive(void* argument) {
  struct direction* way = argument;
  for (;;) {
    char* const bytes = malloc(kLargest);
    must(bytes != NULL, "malloc");
    const ssize_t size = read(way->from, bytes, kLargest);
    if (size <= kHeader) {
      free(bytes);
      continue;
    }
    const uint64_t now = now_ns();
    pthread_mutex_lock(&way->mutex);
    while (way->head - way->tail == kPackets) pthread_cond_wait(&way->changed, &way->mutex);
    if (way->free_at < now) way->free_at = now;
    way->free_at += (uint64_t)((double)(size - kHeader) / way->rate * 1e9);
    way->ring[way->head++ % kPackets] = (struct packet){way->free_at + way->delay, (size_t)size, bytes};
    pthread_cond_broadcast(&way->changed);
    pthread_mutex_unlock(&way->mutex);
  }
  return NULL;
}

static void* release(void* argument) {
  struct direction* way = argument;
  for (;;) {
    pthread_mutex_lock(&way->mutex);
    while (way->head == way->tail) pthread_cond_wait(&way->changed, &way->mutex);
    const struct packet packet = way->ring[way->tail % kPackets];
    pthread_mutex_unlock(&way->mutex);
    const struct timespec due = {(time_t)(packet.due / 1000000000), (long)(packet.due % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) != 0) continue;
    // A device that is full, or not up yet, drops it, as a network may.
    if (write(way->to, packet.bytes, packet.size) < 0) sched_yield();
    free(packet.bytes);
    pthread_mutex_lock(&way->mutex);
    ++way->tail;
    pthread_cond_broadcast(&way->changed);
    pthread_mutex_unlock(&way->mutex);
  }
  return NULL;
}

static void start(struct direction* way, int from, int to, double rate, uint64_t delay) {
  way->from = from;
  way->to = to;
  way->rate = rate;
  way->delay = delay;
  pthread_mutex_init(&way->mutex, NULL);
  pthread_cond_init(&way->changed, NULL);
  pthread_t thread;
  must(pthread_create(&thread, NULL, receive, way) == 0, "pthread_create");
  must(pthread_create(&thread, NULL, release, way) == 0, "pthread_create");
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/ns/net", strtol(argv[1], NULL, 10));
  const double rate = strtod(argv[2], NULL);
  const uint64_t delay = strtoull(argv[3], NULL, 10) * 1000;
  const int here = open_tun();
  const int namespace = open(path, O_RDONLY | O_CLOEXEC);
  must(namespace >= 0 && setns(namespace, CLONE_NEWNET) == 0, "enter the network namespace");
  const int there = open_tun();
  static struct direction out, in;
  start(&out, here, there, rate, delay);
  start(&in, there, here, rate, delay);
  puts("up");
  fflush(stdout);
  for (;;) pause();
}
