/* A job of one rank, as the shim sees it: fake_job MODE [NUMBER] LIBRARY. Events of CUDA tick once a call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef struct { char internal[128]; } Id;
typedef struct { double at_ms; } Event;
static double device_ms;
int cudaEventCreate(Event **event) { return *event = calloc(1, sizeof(Event)), 0; }
int cudaEventRecord(Event *event, void *stream) { return (void)stream, event->at_ms = device_ms += 1, 0; }
int cudaEventQuery(Event *event) { return (void)event, 0; }
int cudaEventElapsedTime(float *passed_ms, Event *from, Event *to) { return *passed_ms = to->at_ms - from->at_ms, 0; }

static int capturing;
int cudaStreamIsCapturing(void *stream, int *is) { return (void)stream, *is = capturing, 0; }

#define NAMES(X) \
  X(ncclCommInitRank, (void **, int, Id, int)) X(ncclCommSplit, (void *, int, int, void **, void *)) \
  X(ncclAllReduce, (const void *, void *, size_t, int, int, void *, void *)) \
  X(ncclReduce, (const void *, void *, size_t, int, int, int, void *, void *)) \
  X(ncclBroadcast, (const void *, void *, size_t, int, int, void *, void *)) \
  X(ncclBcast, (void *, size_t, int, int, void *, void *)) \
  X(ncclAllGather, (const void *, void *, size_t, int, void *, void *)) \
  X(ncclReduceScatter, (const void *, void *, size_t, int, int, void *, void *)) \
  X(ncclSend, (const void *, size_t, int, int, void *, void *)) X(ncclRecv, (void *, size_t, int, int, void *, void *)) \
  X(ncclGroupStart, (void)) X(ncclGroupEnd, (void)) X(ncclCommDestroy, (void *))
#define DECLARE(name, types) static int(*name) types;
NAMES(DECLARE)
#define FIND(name, types) *(void **)&name = dlsym(RTLD_DEFAULT, #name);

static void *comm_of(int size, int place) {
  void *comm = NULL;
  Id id;
  memset(&id, 7, sizeof id);
  ncclCommInitRank(&comm, size, id, place);
  return comm;
}

static void all_calls(void) {
  void *world = comm_of(4, atoi(getenv("RANK"))), *part = NULL;
  ncclAllReduce(0, 0, 10, 7, 0, world, 0);    /* 7: float32 */
  ncclBroadcast(0, 0, 3, 7, 0, world, 0);
  ncclBcast(0, 3, 7, 0, world, 0);
  ncclAllGather(0, 0, 5, 6, world, 0);        /* 6: float16 */
  ncclReduceScatter(0, 0, 5, 8, 0, world, 0); /* 8: float64 */
  ncclReduce(0, 0, 1, 0, 0, 0, world, 0);
  ncclCommSplit(world, 1, 0, &part, 0);
  ncclGroupStart();
  ncclSend(0, 2, 7, 1, part, 0);
  ncclRecv(0, 2, 7, 1, part, 0);
  ncclSend(0, 2, 7, 1, part, 0);
  ncclGroupEnd();
  ncclCommDestroy(part);
  ncclSend(0, 2, 7, 1, part, 0); /* of a communicator that nobody knows any more */
}

static double cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e9 * now.tv_sec + now.tv_nsec;
}

static void many_calls(int number) {
  void *world = comm_of(4, 0);
  double start = cpu_ns();
  for (int i = 0; i < number; i++) ncclAllReduce(0, 0, 10, 7, 0, world, 0);
  printf("%.1f\n", (cpu_ns() - start) / number);
}

static void steps(int number) {
  void (*step)(void);
  *(void **)&step = dlsym(RTLD_DEFAULT, "takeup_step");
  void *world = comm_of(4, 0);
  for (int i = 0; i < 8; i++, step())
    for (int j = 0; j < number; j++) ncclAllReduce(0, 0, 10, 7, 0, world, 0);
}

static void captured(void) {
  void *world = comm_of(4, 0);
  for (int i = 0; i < 3; i++) capturing = i > 0, ncclAllReduce(0, 0, 10, 7, 0, world, 0);
}

int main(int count, char **arguments) {
  void *library = dlopen(arguments[count - 1], RTLD_NOW | (strcmp(arguments[1], "late") ? RTLD_GLOBAL : RTLD_LOCAL));
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  NAMES(FIND)
  if (!strcmp(arguments[1], "many")) many_calls(atoi(arguments[2]));
  else if (!strcmp(arguments[1], "steps")) steps(atoi(arguments[2]));
  else if (!strcmp(arguments[1], "captured")) captured();
  else all_calls();
  printf("%d\n", *(int *)dlsym(library, "num_calls"));
  return 0;
}
