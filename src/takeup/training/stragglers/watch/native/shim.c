/* Notes every call of NCCL in the ring of its rank, for jobs that make thousands of them in an iteration.
 *
 * Loaded with LD_PRELOAD, it stands before libnccl.so.2: each function notes the call and goes on to the real one. The
 * file it writes is the one that src/takeup/training/stragglers/watch/ring.py describes; the numbers here must be
 * the numbers there, and a test compares them. Whatever fails here ends the noting, never the job.
 *
 * When a call ended is known only to the device. Two events of CUDA are put around calls, the same ones on all ranks,
 * since all count alike: all calls of a step of the optimizer, or of every second, fourth ... step if they are many;
 * before the first step every EVERY-th call of a group. They are looked at when a later call comes, in a mode that does
 * not disturb the capture of a graph; nothing is synchronised. A call counts from when the host made it, and lasts as
 * long as the device needed for it. Calls that are captured into a graph are only counted: replays are not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The layout of the ring ------------------------------------------------------------------------------------------- */

#define MAGIC 0x74616B6575700001LL
enum { CAPACITY = 20000, MOST_GROUPS = 1024, HEADER_WORDS = 64, GROUP_WORDS = 3, ROW_WORDS = 8 };
enum { FIRST_GROUP = HEADER_WORDS, FIRST_ROW = FIRST_GROUP + MOST_GROUPS * GROUP_WORDS };
enum { W_MAGIC, W_RANK, W_NUM_RANKS, W_PID, W_HEAD, W_NUM_GROUPS, W_NUM_CAPTURED = 8, W_IS_OFF = 9, W_LOCAL_RANK = 10 };
enum { R_NUMBER, R_OPERATION, R_PEER, R_GROUP, R_COUNT, R_SIZE, R_BEGAN, R_ENDED };
enum { ALL_REDUCE = 1, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, REDUCE, GATHER, SCATTER, BARRIER, SEND, RECEIVE, STEP };
enum { UNSEEN = -1 }; /* an end that nobody needs to wait for */
#define SIZE_BYTES (8L * (FIRST_ROW + (long)CAPACITY * ROW_WORDS))

/* NCCL, as its header has it --------------------------------------------------------------------------------------- */

typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct { char internal[128]; } ncclUniqueId;
static const int BYTES_OF_TYPE[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* What is known of this process ------------------------------------------------------------------------------------ */

enum { MOST_COMMS = 256, MOST_STREAMS = 1024, MOST_TIMED = 4096, TIMED_PER_STEP = 64 };
typedef struct { ncclComm_t comm; int64_t group; int32_t place, size; int64_t count, splits; int32_t first_stream; } Comm;
typedef struct { int32_t peer, is_send; int64_t count; int32_t next; } Stream; /* messages with one peer, one way */
typedef struct { cudaEvent_t start, end; int64_t row; int has_end; cudaStream_t stream; } Timed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int64_t *words;
static int64_t head;
static Comm comms[MOST_COMMS];
static Stream streams[MOST_STREAMS];
static int num_comms, num_streams, depth, every = 16;
static Timed timed[MOST_TIMED];
static int64_t timed_first, timed_last, num_steps, step_head, steps_apart;

static int (*event_create)(cudaEvent_t *), (*event_record)(cudaEvent_t, cudaStream_t), (*event_query)(cudaEvent_t);
static int (*event_elapsed)(float *, cudaEvent_t, cudaEvent_t);
static int (*stream_is_capturing)(cudaStream_t, int *), (*exchange_mode)(int *);

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now); /* as time.monotonic_ns() */
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void *real(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) { /* PyTorch may load NCCL so that its names are not global */
    void *library = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY);
    if (library) found = dlsym(library, name);
  }
  return found;
}

static void *cuda(const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  static const char *const libraries[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};
  for (unsigned i = 0; !found && i < sizeof libraries / sizeof *libraries; i++) {
    void *library = dlopen(libraries[i], RTLD_NOLOAD | RTLD_LAZY);
    if (library) found = dlsym(library, name);
  }
  return found;
}

static int64_t number_of(const char *name, int64_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoll(text) : otherwise;
}

static void open_ring(void) {
  const char *folder = getenv("TAKEUP_WATCH_FOLDER");
  int64_t rank = number_of("RANK", number_of("SLURM_PROCID", number_of("OMPI_COMM_WORLD_RANK", number_of("PMI_RANK", -1))));
  if (!folder || !*folder || rank < 0) return;
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%lld-%d.ring", folder, (long long)rank, (int)getpid()) >= (int)sizeof path) return;
  int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0 || ftruncate(file, SIZE_BYTES)) {
    fprintf(stderr, "takeup cannot note calls in %s, the job goes on: %s\n", path, strerror(errno));
    if (file >= 0) close(file);
    return;
  }
  int64_t *memory = mmap(NULL, SIZE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return;
  memory[W_RANK] = rank, memory[W_NUM_RANKS] = number_of("WORLD_SIZE", number_of("SLURM_NTASKS", number_of("OMPI_COMM_WORLD_SIZE", number_of("PMI_SIZE", 1)))), memory[W_PID] = getpid();
  memory[W_LOCAL_RANK] = 1 + number_of("LOCAL_RANK", number_of("SLURM_LOCALID", -1));
  __atomic_store_n(&memory[W_MAGIC], MAGIC, __ATOMIC_RELEASE);
  every = (int)number_of("TAKEUP_SHIM_TIME_EVERY", 16);
  *(void **)&stream_is_capturing = cuda("cudaStreamIsCapturing");
  *(void **)&exchange_mode = cuda("cudaThreadExchangeStreamCaptureMode");
  if (every > 0) {
    *(void **)&event_create = cuda("cudaEventCreate"), *(void **)&event_record = cuda("cudaEventRecord");
    *(void **)&event_query = cuda("cudaEventQuery"), *(void **)&event_elapsed = cuda("cudaEventElapsedTime");
    if (!event_create || !event_record || !event_query || !event_elapsed) every = 0;
  }
  words = memory;
}

/* Groups ----------------------------------------------------------------------------------------------------------- */

static int64_t mixed(int64_t seed, const void *data, size_t size) { /* FNV-1a */
  uint64_t hash = 14695981039346656037ULL ^ (uint64_t)seed;
  for (const unsigned char *byte = data; size--; byte++) hash = (hash ^ *byte) * 1099511628211ULL;
  return (int64_t)(hash >> 8) + 1;
}

static Comm *add_comm(ncclComm_t comm, int64_t group, int place, int size) {
  if (!words || num_comms == MOST_COMMS) return NULL;
  Comm *added = &comms[num_comms++];
  *added = (Comm){comm, group, place, size, 0, 0, -1};
  int64_t number = words[W_NUM_GROUPS];
  if (number < MOST_GROUPS) {
    int64_t *row = &words[FIRST_GROUP + GROUP_WORDS * number];
    row[0] = group, row[1] = place, row[2] = size;
    __atomic_store_n(&words[W_NUM_GROUPS], number + 1, __ATOMIC_RELEASE);
  }
  return added;
}

static Comm *find_comm(ncclComm_t comm) {
  for (int i = num_comms - 1; i >= 0; i--)
    if (comms[i].comm == comm) return &comms[i];
  return NULL;
}

static int64_t next_number(Comm *comm, int peer, int is_send) {
  if (peer < 0) return comm->count++;
  for (int i = comm->first_stream; i >= 0; i = streams[i].next)
    if (streams[i].peer == peer && streams[i].is_send == is_send) return streams[i].count++;
  if (num_streams == MOST_STREAMS) return -1; /* no longer noted */
  streams[num_streams] = (Stream){peer, is_send, 1, comm->first_stream};
  comm->first_stream = num_streams++;
  return 0;
}

/* Times of the device ---------------------------------------------------------------------------------------------- */

static int64_t *row_at(int64_t number) { return &words[FIRST_ROW + ROW_WORDS * (number % CAPACITY)]; }

static void collect_ended(void) { /* what has ended by now */
  while (timed_first < timed_last) {
    Timed *each = &timed[timed_first % MOST_TIMED];
    if (!each->has_end || event_query(each->end)) return;
    float passed_ms = -1;
    if (head - each->row < CAPACITY && !event_elapsed(&passed_ms, each->start, each->end) && passed_ms >= 0) {
      int64_t *row = row_at(each->row);
      __atomic_store_n(&row[R_ENDED], row[R_BEGAN] + (int64_t)(1e6 * passed_ms), __ATOMIC_RELEASE);
    }
    timed_first++;
  }
}

static void collect(void) {
  int mode = 2; /* relaxed: what is asked here does not invalidate a capture in another thread */
  if (exchange_mode) exchange_mode(&mode);
  collect_ended();
  if (exchange_mode) exchange_mode(&mode);
}

static int is_timed(int64_t number) {
  if (every <= 0) return 0;
  return num_steps ? num_steps % steps_apart == 0 : number % every == 0;
}

static Timed *begin_timing(int64_t row, cudaStream_t stream) {
  collect();
  if (timed_last - timed_first == MOST_TIMED) return NULL;
  Timed *each = &timed[timed_last % MOST_TIMED];
  if (!each->start && (event_create(&each->start) || event_create(&each->end))) return NULL;
  if (event_record(each->start, stream)) return NULL;
  each->row = row, each->has_end = 0, each->stream = stream;
  timed_last++;
  return each;
}

static void end_timing(Timed *each) {
  if (each && !event_record(each->end, each->stream)) each->has_end = 1;
}

/* Calls ------------------------------------------------------------------------------------------------------------ */

static int64_t add_row(int operation, int peer, int64_t group, int64_t number, int64_t size) {
  int64_t *row = row_at(head);
  row[R_NUMBER] = head, row[R_OPERATION] = operation, row[R_PEER] = peer, row[R_GROUP] = group;
  row[R_COUNT] = number, row[R_SIZE] = size, row[R_BEGAN] = now_ns();
  return head;
}

static Timed *note(int operation, int peer, ncclComm_t handle, size_t count, ncclDataType_t type, cudaStream_t stream) {
  if (!words || words[W_IS_OFF]) return NULL;
  int capturing = 0;
  pthread_mutex_lock(&lock);
  Timed *started = NULL;
  Comm *comm = find_comm(handle);
  int64_t number = -1;
  if (stream_is_capturing && (stream_is_capturing(stream, &capturing) || capturing)) words[W_NUM_CAPTURED]++;
  else if (comm) number = next_number(comm, peer, operation == SEND);
  if (number >= 0) {
    int64_t size = (int64_t)count;
    if (type >= 0 && type < (int)(sizeof BYTES_OF_TYPE / sizeof *BYTES_OF_TYPE)) size *= BYTES_OF_TYPE[type];
    int64_t row = add_row(operation, peer, comm->group, number, size);
    if (is_timed(number)) started = begin_timing(row, stream);
    row_at(row)[R_ENDED] = started ? 0 : UNSEEN;
    __atomic_store_n(&words[W_HEAD], ++head, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return started;
}

int64_t *takeup_words(void) { return words; } /* the header of the ring, for the part of the watcher in Python */

void takeup_step(void) { /* the optimizer has made a step; calls of about TIMED_PER_STEP in a step are timed from now on */
  if (!words) return;
  pthread_mutex_lock(&lock);
  collect();
  int64_t num_calls = head - step_head;
  if (num_calls > 0) {
    for (steps_apart = 1; steps_apart * TIMED_PER_STEP < num_calls;) steps_apart *= 2;
    int64_t row = add_row(STEP, -1, 0, num_steps++, 0);
    row_at(row)[R_ENDED] = row_at(row)[R_BEGAN];
    __atomic_store_n(&words[W_HEAD], ++head, __ATOMIC_RELEASE);
    step_head = head;
  }
  pthread_mutex_unlock(&lock);
}

static void done(Timed *started) {
  if (!started) return;
  pthread_mutex_lock(&lock);
  if (!depth) end_timing(started); /* inside a group nothing is launched yet */
  pthread_mutex_unlock(&lock);
}

#define REAL(name, ...) \
  static ncclResult_t (*next)(__VA_ARGS__); \
  if (!next) { pthread_once(&once, open_ring); *(void **)&next = real(name); } \
  if (!next) return 3 /* ncclInternalError */

ncclResult_t ncclAllReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t q) {
  REAL("ncclAllReduce", const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
  Timed *started = note(ALL_REDUCE, -1, c, n, t, q);
  ncclResult_t result = next(s, r, n, t, o, c, q);
  done(started);
  return result;
}

ncclResult_t ncclReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t o, int root, ncclComm_t c, cudaStream_t q) {
  REAL("ncclReduce", const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t);
  Timed *started = note(REDUCE, -1, c, n, t, q);
  ncclResult_t result = next(s, r, n, t, o, root, c, q);
  done(started);
  return result;
}

ncclResult_t ncclBcast(void *b, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t q) {
  REAL("ncclBcast", void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  Timed *started = note(BROADCAST, -1, c, n, t, q);
  ncclResult_t result = next(b, n, t, root, c, q);
  done(started);
  return result;
}

ncclResult_t ncclAllGather(const void *s, void *r, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t q) {
  REAL("ncclAllGather", const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
  Timed *started = note(ALL_GATHER, -1, c, n, t, q);
  ncclResult_t result = next(s, r, n, t, c, q);
  done(started);
  return result;
}

ncclResult_t ncclReduceScatter(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t q) {
  REAL("ncclReduceScatter", const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
  Timed *started = note(REDUCE_SCATTER, -1, c, n, t, q);
  ncclResult_t result = next(s, r, n, t, o, c, q);
  done(started);
  return result;
}

ncclResult_t ncclAlltoAll(const void *s, void *r, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t q) {
  REAL("ncclAlltoAll", const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
  Timed *started = note(ALL_TO_ALL, -1, c, n, t, q);
  ncclResult_t result = next(s, r, n, t, c, q);
  done(started);
  return result;
}

#define ROOTED(name, operation) \
  ncclResult_t name(const void *s, void *r, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t q) { \
    REAL(#name, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t); \
    Timed *started = note(operation, -1, c, n, t, q); \
    ncclResult_t result = next(s, r, n, t, root, c, q); \
    done(started); \
    return result; \
  }
ROOTED(ncclBroadcast, BROADCAST)
ROOTED(ncclGather, GATHER)
ROOTED(ncclScatter, SCATTER)

ncclResult_t ncclSend(const void *s, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t q) {
  REAL("ncclSend", const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  Timed *started = note(SEND, peer, c, n, t, q);
  ncclResult_t result = next(s, n, t, peer, c, q);
  done(started);
  return result;
}

ncclResult_t ncclRecv(void *r, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t q) {
  REAL("ncclRecv", void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  Timed *started = note(RECEIVE, peer, c, n, t, q);
  ncclResult_t result = next(r, n, t, peer, c, q);
  done(started);
  return result;
}

/* Several calls as one: their events come after the last of them has been launched --------------------------------- */

ncclResult_t ncclGroupStart(void) {
  REAL("ncclGroupStart", void);
  ncclResult_t result = next();
  pthread_mutex_lock(&lock);
  depth++;
  pthread_mutex_unlock(&lock);
  return result;
}

ncclResult_t ncclGroupEnd(void) {
  REAL("ncclGroupEnd", void);
  ncclResult_t result = next();
  pthread_mutex_lock(&lock);
  if (depth > 0 && !--depth)
    for (int64_t i = timed_first; i < timed_last; i++)
      if (!timed[i % MOST_TIMED].has_end) end_timing(&timed[i % MOST_TIMED]);
  pthread_mutex_unlock(&lock);
  return result;
}

/* Communicators ---------------------------------------------------------------------------------------------------- */

static ncclResult_t made(ncclResult_t result, ncclComm_t *comm, int64_t group, int place, int size) {
  if (words && (result == 0 || result == 7) && comm && *comm) { /* 7: it is being made */
    pthread_mutex_lock(&lock);
    add_comm(*comm, group, place, size);
    pthread_mutex_unlock(&lock);
  }
  return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int place) {
  REAL("ncclCommInitRank", ncclComm_t *, int, ncclUniqueId, int);
  return made(next(comm, size, id, place), comm, mixed(0, &id, sizeof id), place, size);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int place, void *config) {
  REAL("ncclCommInitRankConfig", ncclComm_t *, int, ncclUniqueId, int, void *);
  return made(next(comm, size, id, place, config), comm, mixed(0, &id, sizeof id), place, size);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int place, int num_ids, ncclUniqueId *ids, void *config) {
  REAL("ncclCommInitRankScalable", ncclComm_t *, int, int, int, ncclUniqueId *, void *);
  return made(next(comm, size, place, num_ids, ids, config), comm, mixed(0, ids, num_ids * sizeof *ids), place, size);
}

static ncclResult_t parted(ncclResult_t result, ncclComm_t comm, int64_t colour, ncclComm_t *part) {
  static ncclResult_t (*user_rank)(ncclComm_t, int *), (*count_of)(ncclComm_t, int *);
  if (!user_rank) *(void **)&user_rank = real("ncclCommUserRank"), *(void **)&count_of = real("ncclCommCount");
  pthread_mutex_lock(&lock);
  Comm *parent = words ? find_comm(comm) : NULL;
  int64_t about[2] = {colour, parent ? parent->splits++ : 0}, group = parent ? mixed(parent->group, about, sizeof about) : 0;
  pthread_mutex_unlock(&lock);
  int place = 0, size = 0;
  if (!parent || !part || !*part || user_rank(*part, &place) || count_of(*part, &size)) return result;
  return made(result, part, group, place, size);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int colour, int key, ncclComm_t *part, void *config) {
  REAL("ncclCommSplit", ncclComm_t, int, int, ncclComm_t *, void *);
  return parted(next(comm, colour, key, part, config), comm, colour, part);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *left_out, int count, ncclComm_t *part, void *config, int flags) {
  REAL("ncclCommShrink", ncclComm_t, int *, int, ncclComm_t *, void *, int);
  return parted(next(comm, left_out, count, part, config, flags), comm, mixed(count, left_out, count * sizeof *left_out), part);
}

static void forget(ncclComm_t comm) {
  pthread_mutex_lock(&lock);
  Comm *found = find_comm(comm);
  if (found) *found = comms[--num_comms];
  pthread_mutex_unlock(&lock);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  REAL("ncclCommDestroy", ncclComm_t);
  forget(comm);
  return next(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  REAL("ncclCommAbort", ncclComm_t);
  forget(comm);
  return next(comm);
}
