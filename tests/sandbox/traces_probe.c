// Runs inside a sandbox. "leave" leaves what is no file: an abstract socket with a process that listens, and a segment,
// a semaphore and a queue of System V. "look" prints a line for each of them that can be reached.
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { kKey = 0x1eaf };

static const struct sockaddr_un kAddress = {.sun_family = AF_UNIX, .sun_path = "\0left"};
static const socklen_t kSize = offsetof(struct sockaddr_un, sun_path) + 5;

static void must(const char* what, long result) {
  if (result >= 0) return;
  perror(what);
  exit(1);
}

static void leave(void) {
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  must("bind", bind(listener, (const struct sockaddr*)&kAddress, kSize));
  must("listen", listen(listener, 8));
  const int segment = shmget(kKey, 4096, IPC_CREAT | 0666);
  must("shmget", segment);
  char* const memory = shmat(segment, NULL, 0);
  must("shmat", memory == (void*)-1 ? -1 : 0);
  strcpy(memory, "left");
  must("semget", semget(kKey, 1, IPC_CREAT | 0666));
  const int queue = msgget(kKey, IPC_CREAT | 0666);
  must("msgget", queue);
  const struct {
    long type;
    char text[8];
  } message = {1, "left"};
  must("msgsnd", msgsnd(queue, &message, sizeof message.text, 0));
  const pid_t child = fork();
  must("fork", child);
  if (child != 0) return;
  close(0), close(1), close(2);
  for (;;) pause();
}

static void look(void) {
  if (connect(socket(AF_UNIX, SOCK_STREAM, 0), (const struct sockaddr*)&kAddress, kSize) == 0) puts("socket");
  if (shmget(kKey, 0, 0) >= 0) puts("segment");
  if (semget(kKey, 0, 0) >= 0) puts("semaphore");
  if (msgget(kKey, 0) >= 0) puts("queue");
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  strcmp(argv[1], "leave") == 0 ? leave() : look();
  return 0;
}
