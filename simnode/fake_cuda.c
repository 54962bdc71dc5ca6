/* A fake libcuda.so.1: virtual cards that several processes share, for tests and demos of what keeps a container to its share.
 *
 * A kernel takes as many microseconds as its grid has blocks in x, but for two that are known by their names (work.ptx): `fault`
 * writes where no memory is, and `meet` waits for others like it. Kernels of a context run in the order of their launches, in all
 * of its streams; contexts have the card by slices (fake_card.c). Memory is counted, not allocated; an address or a handle that was
 * freed is the first to be given again. Copies take no time.
 *
 * What each process has of a card is in the file <uuid>.memory, where fake_nvml.c finds it: 256 numbers of bytes. A number is that
 * of the process which holds a lock (fcntl) on the byte of its index, so it ends with the process, however that ends, and the
 * kernel says which process it is, in the process IDs of who asks. 256 more numbers say whether it is a client of an MPS server.
 *
 * It refuses what the driver refuses. The rules are from a run on a card (H200, driver 580.159) where the comment says "seen",
 * else from the description of the function in cuda.h of CUDA 13.0.
 *
 *   NVIDIA_VISIBLE_DEVICES   the UUIDs of the cards, separated by commas. Without a UUID in it: the cards that /dev has, and
 *                            of which FAKE_CUDA_DIR has a link nvidia<minor> to the UUID, as the driver would tell it
 *   FAKE_CUDA_DIR            a folder with one state file for each card, which the processes share; made when needed
 *   FAKE_CUDA_MIB            memory of a card [81008]
 *   CUDA_MPS_PIPE_DIRECTORY  a folder. If an MPS daemon (fake_mps.py) has its socket there, the process is a client of its server:
 *                            CUDA_MPS_PINNED_DEVICE_MEM_LIMIT limits its memory of the first card, and a fault of one client is
 *                            one of all (Multi-Process Service, "Memory protection and error containment"). That clients work
 *                            at the same time, each on a part of the card, is not simulated: they have slices, as others
 *   FAKE_CUDA_CONTEXT_MIB    memory that a context takes [514, seen]; 0: cuInit takes none either
 *   FAKE_CUDA_ASKED          a file: a line for each function that cuGetProcAddress is asked for, name and flags [none]
 *   FAKE_CUDA_FREE_US        for so long a call that frees goes on after the memory is free [0]
 *   FAKE_CUDA_LAUNCH_US      for so long a launch goes on before its work reaches the card [0]
 *   FAKE_CUDA_RETURN_US      for so long a launch goes on after that, as that of a process which waits for a CPU [0]
 *   FAKE_CUDA_LAUNCHES       a file: when the work of each launch reached the card, as int64 nanoseconds of CLOCK_MONOTONIC [none]
 *
 * What the state of a card counts, `fake_cuda_counts` returns: launches, and bytes that are allocated by this process.
 * `fake_cuda_worked` returns for how many ns a card has worked for this process.
 * `fake_cuda_events` returns how many events a graph has, which were recorded while it was captured; `fake_cuda_live_events`
 * returns how many events of the process were created and not destroyed, and `fake_cuda_refused_records` how often an event was
 * to be recorded on a stream of another context than its own.
 * Source of names and types: cuda-bindings (Apache-2.0), by shares/library/cu.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cu.h"
#include "fake_card.h"

#define API __attribute__((visibility("default")))
enum mode { GLOBAL, THREAD_LOCAL, RELAXED }; /* CUstreamCaptureMode */
enum {
  MAX_CARDS = 8,
  CUDA_ARRAY3D_LAYERED = 1,
  HOST = -1, /* in place of a card: memory of the host */
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  CAPTURE_OF_OTHER_THREAD = 908,
  ILLEGAL_ADDRESS = 700,
  MPS_SERVER_NOT_READY = 807,
};
#define GRANULARITY ((size_t)2 << 20) /* seen: cuMemCreate of 1 MiB is refused */
#define SMALLEST ((size_t)512)        /* places in a block that several allocations share are multiples of it */
#define INITIAL ((size_t)4 << 20)     /* seen: what a process has of a card after cuInit */
enum { SLOTS = 256 };

struct state {
  _Atomic int64_t launches;
};
struct CUctx_st {
  int card, references; /* 0: a primary context that is not active */
  int is_green, has_memory;
  struct work work;
  int64_t end, blocking_end; /* end of its last work, and of the last work that the legacy stream waits for */
};
struct CUgreenCtx_st {
  struct CUctx_st context;
};
struct CUstream_st {
  CUcontext context;
  int is_free; /* CU_STREAM_NON_BLOCKING: the legacy stream does not wait for it */
  int capturing, captured_events, is_invalid;
  CUcontext captured_in;
  enum mode mode;
  const enum mode *capturer; /* the thread that began the capture */
  struct CUstream_st *next_capture;
  CUgraph graph; /* the graph that is captured */
  int64_t captured_us;
  CUcontext used_in; /* context of the last launch: a default stream has work in several */
  int64_t end;
};
struct CUevent_st {
  struct mark mark;
  int captured; /* it was last recorded in a capture */
  int is_timed, is_recorded;
  CUcontext context;
};
struct CUfunc_st {
  enum { WORK, FAULT, MEET } kind;
  CUcontext context; /* in which its module was loaded */
};
struct CUgraph_st {
  int64_t us;
  int events;
  size_t memory; /* memory of its nodes, which an instance takes when it is uploaded or first launched */
  int card, instances;
};
struct CUgraphExec_st {
  struct CUgraph_st made;
  CUgraph graph;
  int has_memory;
};
struct CUmemPoolHandle_st {
  int card;
  size_t used, reserved;
  size_t unobserved; /* of what was freed: the host has not synchronised since */
  uint64_t threshold;
  int destroyed;
  struct CUmemPoolHandle_st *next;
};
/* Allocations of less than 2 MiB share blocks of 2 MiB (seen: 16 of 1 MiB take 16 MiB). */
struct block {
  CUdeviceptr at;
  CUcontext context;
  int allocations;
  struct block *next;
};
struct allocation {
  CUdeviceptr at;
  size_t size;
  struct block *block;
  int card;
  CUcontext context; /* it ends with this; NULL: with none */
  CUmemoryPool pool;
  struct allocation *next;
};
/* Memory of cuMemCreate lives until its handles, its mappings, and the file descriptors that it was exported to are gone. */
struct physical {
  size_t size;
  int card, references;
  int is_foreign; /* another process created it, and has it of the card; that it lives on after that process is not simulated */
};
struct handle {
  CUmemGenericAllocationHandle value;
  int references;
  struct physical *physical;
  struct handle *next;
};
struct mapping {
  CUdeviceptr at; /* or the array, where `size` is 0 */
  size_t size;
  CUmemGenericAllocationHandle handle;
  struct physical *physical;
  struct mapping *next;
};
struct reservation {
  CUdeviceptr at;
  size_t size;
  struct reservation *next;
};
struct export {
  ino_t inode;
  struct physical *physical;
  struct export *next;
};

static struct state *cards[MAX_CARDS];
static CUuuid uuids[MAX_CARDS];
static int count = -1;
static size_t total, context_bytes, used[MAX_CARDS]; /* `used`: by this process, without its contexts */
static _Atomic int64_t *slots[MAX_CARDS];            /* memory that each process has of the card */
static int slot_files[MAX_CARDS], own_slot[MAX_CARDS];
static int mps = -1;      /* the connection to an MPS daemon; -1: there is none */
static size_t mps_memory; /* the limit of a client; 0: none */
static struct block *blocks;
static struct CUctx_st contexts[MAX_CARDS];
static struct CUmemPoolHandle_st pools[MAX_CARDS], host_pool = {.card = HOST}, managed_pool = {.next = &host_pool};
static CUmemoryPool current_pools[MAX_CARDS];
static CUmemoryPool all_pools = &managed_pool; /* also those that were destroyed: their addresses are not given again */
static struct CUstream_st default_stream;
static _Atomic int live_events, refused_records;
static struct CUstream_st *captures; /* streams that are captured; with `capture_lock` held */
static __thread CUcontext current;
static __thread enum mode thread_mode; /* cuThreadExchangeStreamCaptureMode */
static __thread struct CUstream_st thread_stream;
static struct allocation *allocations, *freed; /* `freed`: addresses to be given again */
static struct handle *handles;
static struct mapping *mappings, *tiles;
static struct reservation *reservations;
static struct export *exports;
static int64_t free_ns, launch_ns, return_ns;
static int launch_log = -1;
static int forked; /* a child of a process that used CUDA: it never can (seen) */
static CUdeviceptr next_address = 0x7f0000000000;
#define GRAPH_ADDRESSES ((CUdeviceptr)0x7e0000000000)
static CUdeviceptr next_graph_address = GRAPH_ADDRESSES;
static size_t graph_memory[MAX_CARDS], idle_graph_memory[MAX_CARDS]; /* `idle`: of instances that are gone */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, capture_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  _Atomic(struct work *) work; /* work that has faulted; NULL: there is none */
  int64_t end;
} fault;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_until(int64_t at) {
  struct timespec t = {at / 1000000000, at % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
  }
}

/* Map a file of a card, and return its descriptor. */
static int open_file(const char *uuid, const char *ending, void **map) {
  const char *folder = getenv("FAKE_CUDA_DIR");
  char path[4096];
  snprintf(path, sizeof path, "%s/%s%s", folder ? folder : "/tmp", uuid, ending);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0 || ftruncate(fd, 4096)) return -1;
  *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return *map == MAP_FAILED ? -1 : fd;
}

static struct state *open_card(const char *uuid) {
  void *map = NULL;
  int fd = open_file(uuid, "", &map);
  if (fd < 0) return NULL;
  close(fd);
  return map;
}

static struct flock byte_of(int slot) { return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1}; }

/* Take a slot for what this process has of a card: the descriptor stays open, because closing it would end the lock. */
static int open_slots(const char *uuid, int card) {
  void *map = NULL;
  slot_files[card] = open_file(uuid, ".memory", &map);
  slots[card] = map;
  for (int i = 0; i < SLOTS && slot_files[card] >= 0; i++) {
    struct flock own = byte_of(i);
    if (fcntl(slot_files[card], F_SETLK, &own)) continue;
    own_slot[card] = i;
    atomic_store(&slots[card][i], 0);
    atomic_store(&slots[card][SLOTS + i], mps >= 0);
    return 1;
  }
  return 0;
}

/* Return what all processes have of a card. */
static size_t used_by_all(int card) {
  size_t sum = 0;
  for (int i = 0; i < SLOTS; i++) {
    int64_t bytes = atomic_load(&slots[card][i]);
    struct flock other = byte_of(i);
    if (!bytes || (i != own_slot[card] && (fcntl(slot_files[card], F_GETLK, &other) || other.l_type == F_UNLCK))) continue;
    sum += (size_t)bytes;
  }
  return sum;
}

/* Take memory of a card for this process. Two processes that take the last of it at a time may both be refused. */
static CUresult occupy(int card, size_t size) {
  _Atomic int64_t *own = &slots[card][own_slot[card]];
  if (size > total) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!card && mps_memory && (size_t)atomic_load(own) + size > mps_memory) return CUDA_ERROR_OUT_OF_MEMORY;
  atomic_fetch_add(own, (int64_t)size);
  if (used_by_all(card) <= total) return CUDA_SUCCESS;
  atomic_fetch_sub(own, (int64_t)size);
  return CUDA_ERROR_OUT_OF_MEMORY;
}
static void vacate(int card, size_t size) { atomic_fetch_sub(&slots[card][own_slot[card]], (int64_t)size); }

static int parse_uuid(const char *text, CUuuid *out) {
  int digits = 0;
  for (text += 4; *text && digits < 32; text++) {
    if (*text == '-') continue;
    int value = *text <= '9' ? *text - '0' : (*text | 32) - 'a' + 10;
    out->bytes[digits / 2] = (char)(digits % 2 ? (out->bytes[digits / 2] << 4) | value : value);
    digits++;
  }
  return digits == 32;
}

static void add_card(const char *uuid) {
  const char *folder = getenv("FAKE_CUDA_DIR");
  if (count == MAX_CARDS || strncmp(uuid, "GPU-", 4) || !parse_uuid(uuid, &uuids[count])) return;
  cards[count] = open_slots(uuid, count) ? open_card(uuid) : NULL;
  contexts[count].card = pools[count].card = count;
  contexts[count].work.card = card_open(folder ? folder : "/tmp", uuid);
  current_pools[count] = &pools[count];
  if (cards[count]) pools[count].next = all_pools, all_pools = &pools[count];
  if (cards[count] && contexts[count].work.card) count++;
}

static void add_cards_of_dev(void) {
  const char *folder = getenv("FAKE_CUDA_DIR");
  char node[32], path[4096], uuid[64];
  for (int minor = 0; minor < 256; minor++) {
    snprintf(node, sizeof node, "/dev/nvidia%d", minor);
    snprintf(path, sizeof path, "%s/nvidia%d", folder ? folder : "/tmp", minor);
    ssize_t length = access(node, F_OK) ? -1 : readlink(path, uuid, sizeof uuid - 1);
    if (length <= 0) continue;
    uuid[length] = 0;
    add_card(uuid);
  }
}

static void after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  pthread_mutex_init(&capture_lock, NULL);
  if (mps >= 0) close(mps);
  mps = -1;
  forked = 1;
}

static size_t parse_limit(const char *text) {
  char unit = 0;
  unsigned long long number = 0;
  if (!text || sscanf(text, "%llu%c", &number, &unit) != 2) return 0;
  return (size_t)number << (unit == 'G' ? 30 : 20);
}

/* Become a client of the MPS server, if a daemon answers; else the process goes on without (nvidia-cuda-mps-control(1)). */
static CUresult join_mps(void) {
  const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY"), *own = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  char line[128] = "", memory[32] = "";
  int fd = folder && *folder ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0) return CUDA_SUCCESS;
  snprintf(address.sun_path, sizeof address.sun_path, "%s/control", folder);
  if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
    close(fd);
    return CUDA_SUCCESS;
  }
  mps = fd;
  dprintf(mps, "client %d\n", (int)getuid());
  if (recv(mps, line, sizeof line - 1, 0) <= 0 || strncmp(line, "server ", 7)) {
    close(mps);
    mps = -1;
    return MPS_SERVER_NOT_READY;
  }
  sscanf(line, "server %*d %*s %31s", memory);
  size_t most = parse_limit(memory), wanted = parse_limit(own && !strncmp(own, "0=", 2) ? own + 2 : NULL);
  mps_memory = most && (!wanted || most < wanted) ? most : wanted;
  return CUDA_SUCCESS;
}

/* In a namespace of the loader of its own (dlmopen) the driver dies (seen). */
static void die_in_namespace(void) {
  Dl_info where;
  Lmid_t name = LM_ID_BASE;
  void *self = dladdr((void *)cuInit, &where) ? dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (self && !dlinfo(self, RTLD_DI_LMID, &name) && name != LM_ID_BASE) raise(SIGSEGV);
}

API CUresult cuInit(unsigned flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  pthread_mutex_lock(&lock);
  if (count < 0) {
    count = 0;
    die_in_namespace();
    pthread_atfork(NULL, NULL, after_fork);
    CUresult joined = join_mps();
    if (joined) {
      count = -1;
      pthread_mutex_unlock(&lock);
      return joined;
    }
    const char *names = getenv("NVIDIA_VISIBLE_DEVICES"), *mib = getenv("FAKE_CUDA_MIB"), *us = getenv("FAKE_CUDA_FREE_US");
    const char *delay = getenv("FAKE_CUDA_LAUNCH_US"), *log = getenv("FAKE_CUDA_LAUNCHES"), *late = getenv("FAKE_CUDA_RETURN_US");
    char *list = strdup(names ? names : ""), *rest = list, *name;
    while ((name = strsep(&rest, ","))) add_card(name);
    const char *context = getenv("FAKE_CUDA_CONTEXT_MIB");
    context_bytes = (size_t)(context ? atoll(context) : 514) << 20;
    free(list);
    if (!count) add_cards_of_dev();
    free_ns = us ? atoll(us) * 1000 : 0;
    launch_ns = delay ? atoll(delay) * 1000 : 0;
    return_ns = late ? atoll(late) * 1000 : 0;
    if (log) launch_log = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    total = (size_t)(mib ? atoll(mib) : 81008) << 20;
    for (int i = 0; i < count && context_bytes; i++) atomic_store(&slots[i][own_slot[i]], INITIAL);
  }
  pthread_mutex_unlock(&lock);
  return count ? CUDA_SUCCESS : NO_DEVICE;
}

API CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *out) {
  *out = count < 0 ? 0 : count;
  return count < 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < count ? CUDA_SUCCESS : INVALID_DEVICE;
}

API CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) {
  *out = uuids[device];
  return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= count) return INVALID_DEVICE;
  *out = total;
  return CUDA_SUCCESS;
}

static CUcontext base_of(CUcontext context) { return context->is_green ? &contexts[context->card] : context; }

/* Return whether another client of the MPS server has faulted. Which error the others get is described nowhere. */
static int has_other_faulted(void) {
  static _Atomic int has_faulted;
  char line[16];
  if (mps >= 0 && recv(mps, line, sizeof line, MSG_DONTWAIT) > 0) atomic_store(&has_faulted, 1);
  return atomic_load(&has_faulted);
}

/* Return why the process can make no call: 0, if it can. After a kernel's fault it can never again (seen). */
static CUresult refuse_all(void) {
  static _Atomic int is_told;
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  struct work *work = atomic_load(&fault.work);
  if (has_other_faulted()) return ILLEGAL_ADDRESS;
  if (!work || !card_reached(work, fault.end)) return CUDA_SUCCESS;
  card_end(work); /* with the work behind it */
  if (mps >= 0 && !atomic_exchange(&is_told, 1)) dprintf(mps, "fault\n");
  return ILLEGAL_ADDRESS;
}
#define CHECK_USABLE \
  do { \
    CUresult why = refuse_all(); \
    if (why) return why; \
  } while (0)
#define CHECK_CURRENT \
  CHECK_USABLE; \
  if (!current) return INVALID_CONTEXT

/* Captures. Whatever is forbidden while a stream is captured also ends the capture (seen). */

enum forbidden { UNSAFE, BY_LEGACY_STREAM, ALWAYS };

/* Return whether a capture forbids what the thread is about to do. Unsafe calls are forbidden to the thread that captures, unless in
 * relaxed mode, and in global mode to all threads that did not change their own mode (seen; cuStreamBeginCapture in cuda.h). */
static int forbids(const struct CUstream_st *captured, enum forbidden what) {
  if (what == UNSAFE) {
    if (thread_mode == RELAXED || captured->mode == RELAXED) return 0;
    return captured->capturer == &thread_mode || (captured->mode == GLOBAL && thread_mode == GLOBAL);
  }
  return current && captured->captured_in == base_of(current) && (what == ALWAYS || !captured->is_free);
}
static int is_forbidden(enum forbidden what, int ends) {
  int found = 0;
  pthread_mutex_lock(&capture_lock);
  for (struct CUstream_st *one = captures; one; one = one->next_capture) {
    if (!forbids(one, what)) continue;
    found = 1;
    if (ends) one->is_invalid = 1;
  }
  pthread_mutex_unlock(&capture_lock);
  return found;
}
static int is_prohibited(void) { return is_forbidden(UNSAFE, 1); }
/* The legacy stream would wait for what is captured (seen, in every mode). */
static int is_implicit(const struct CUstream_st *stream) {
  return stream == &default_stream && is_forbidden(BY_LEGACY_STREAM, 1);
}

/* Contexts */

static void end_context(CUcontext context);

/* A context has memory of its own. One that was reset gets it again when it is used. */
static CUresult begin_context(CUcontext context) {
  if (context->has_memory) return CUDA_SUCCESS;
  CUresult result = occupy(context->card, context_bytes);
  context->has_memory = !result;
  return result;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= count) return INVALID_DEVICE;
  pthread_mutex_lock(&lock);
  CUresult result = begin_context(&contexts[device]);
  if (!result) *out = &contexts[device], contexts[device].references++;
  pthread_mutex_unlock(&lock);
  return result;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  if (device < 0 || device >= count) return INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  *flags = 0;
  *active = contexts[device].references > 0;
  return CUDA_SUCCESS;
}
/* The last reference resets the context. */
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (device < 0 || device >= count) return INVALID_DEVICE;
  pthread_mutex_lock(&lock);
  CUresult result = contexts[device].references ? CUDA_SUCCESS : INVALID_CONTEXT;
  if (!result && !--contexts[device].references) end_context(&contexts[device]);
  pthread_mutex_unlock(&lock);
  return result;
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (device < 0 || device >= count) return INVALID_DEVICE;
  pthread_mutex_lock(&lock);
  end_context(&contexts[device]);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
  (void)flags;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= count) return INVALID_DEVICE;
  CUcontext made = malloc(sizeof *made);
  *made = (struct CUctx_st){.card = device, .references = 1, .work.card = contexts[device].work.card};
  CUresult result = begin_context(made);
  if (result) free(made);
  else current = *out = made;
  return result;
}
API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device) { return cuCtxCreate_v2(out, flags, device); }
API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int number, unsigned flags, CUdevice device) {
  return affinity || number ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(out, flags, device);
}
API CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device) {
  return params ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(out, flags, device);
}
API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }
static int is_primary(CUcontext context) { return context >= contexts && context < contexts + MAX_CARDS; }
API CUresult cuCtxDestroy_v2(CUcontext context) {
  if (!context || is_primary(context)) return INVALID_CONTEXT;
  pthread_mutex_lock(&lock);
  end_context(context);
  pthread_mutex_unlock(&lock);
  if (current == context) current = NULL;
  return CUDA_SUCCESS;
}
API CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }
/* A green context retains the primary one until it is destroyed. What is allocated in it is of the primary one. */
API CUresult cuGreenCtxCreate(CUgreenCtx *out, const void *resources, CUdevice device, unsigned flags) {
  CUcontext primary;
  (void)resources;
  if (!out || flags != 1) return CUDA_ERROR_INVALID_VALUE; /* CU_GREEN_CTX_DEFAULT_STREAM */
  CUresult result = cuDevicePrimaryCtxRetain(&primary, device);
  if (result) return result;
  *out = malloc(sizeof **out);
  (*out)->context = (struct CUctx_st){.card = device, .references = 1, .is_green = 1};
  return CUDA_SUCCESS;
}
API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green) {
  if (!out || !green) return CUDA_ERROR_INVALID_VALUE;
  *out = &green->context;
  return CUDA_SUCCESS;
}
API CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  if (!green) return CUDA_ERROR_INVALID_VALUE;
  if (current == &green->context) current = NULL;
  return cuDevicePrimaryCtxRelease_v2(green->context.card);
}
API CUresult cuCtxAttach(CUcontext *out, unsigned flags) {
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  if (!current) return INVALID_CONTEXT;
  (*out = current)->references++;
  return CUDA_SUCCESS;
}
API CUresult cuCtxDetach(CUcontext context) {
  if (!context || context != current || is_primary(context)) return INVALID_CONTEXT;
  return --context->references ? CUDA_SUCCESS : cuCtxDestroy_v2(context);
}
API CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = current;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!current) return INVALID_CONTEXT;
  *out = current->card;
  return CUDA_SUCCESS;
}

/* Count memory of a card, or no more; with `lock` held. */
static CUresult use(int card, size_t size) {
  if (card == HOST) return CUDA_SUCCESS;
  CUresult result = occupy(card, size);
  if (!result) used[card] += size;
  return result;
}
static void unuse_bytes(int card, size_t size) {
  if (card == HOST) return;
  used[card] -= size;
  vacate(card, size);
}

/* seen: 2 MiB + 1 take 4 MiB, 5 MiB take 6 MiB */
static size_t whole_blocks(size_t size) { return (size + GRANULARITY - 1) & ~(GRANULARITY - 1); }

/* What pools have freed is the system's again, beyond their thresholds, when the host synchronises. With `lock` held. */
static void shrink(CUmemoryPool pool, size_t keep) {
  size_t least = whole_blocks(pool->used + pool->unobserved);
  if (least < keep) least = whole_blocks(keep);
  if (pool->reserved <= least) return;
  unuse_bytes(pool->card, pool->reserved - least);
  pool->reserved = least;
}
static void synchronised(void) {
  pthread_mutex_lock(&lock);
  for (CUmemoryPool pool = all_pools; pool; pool = pool->next) {
    pool->unobserved = 0;
    shrink(pool, pool->threshold);
  }
  pthread_mutex_unlock(&lock);
}

API CUresult cuCtxSynchronize(void) {
  CHECK_CURRENT;
  if (is_forbidden(ALWAYS, 1)) return CAPTURE_UNSUPPORTED; /* and it waits for nothing (seen) */
  CUcontext context = base_of(current);
  card_wait(&context->work, context->end);
  CHECK_USABLE;
  synchronised();
  return CUDA_SUCCESS;
}

/* Memory. An output that is NULL is refused, but for those of cuMemGetInfo (seen). */

/* With `lock` held. */
static CUdeviceptr new_address(size_t size) {
  struct allocation **link = &freed, *one;
  while (*link && (*link)->size != size) link = &(*link)->next;
  if (!(one = *link)) {
    next_address += whole_blocks(size);
    return next_address - whole_blocks(size);
  }
  CUdeviceptr at = one->at;
  *link = one->next;
  free(one);
  return at;
}
static CUdeviceptr link_allocation(struct allocation made) {
  struct allocation *one = malloc(sizeof *one);
  if (!made.at) made.at = new_address(made.size);
  made.next = allocations;
  *one = made;
  allocations = one;
  return made.at;
}

/* Return the first place in the block that is free; 0 if there is none. With `lock` held. */
static CUdeviceptr place_in(const struct block *block, size_t size) {
  CUdeviceptr at = block->at;
  for (struct allocation *one = allocations; one;) {
    if (one->block == block && one->at < at + size && at < one->at + one->size) {
      at = (one->at + one->size + SMALLEST - 1) & ~(SMALLEST - 1);
      one = allocations;
    } else {
      one = one->next;
    }
  }
  return at + size <= block->at + GRANULARITY ? at : 0;
}

/* Find a place in a block that the context has, or in a new one. With `lock` held. */
static CUresult take_place(struct allocation *made) {
  for (struct block *one = blocks; one; one = one->next) {
    made->block = one;
    if (one->context == made->context && (made->at = place_in(one, made->size))) return CUDA_SUCCESS;
  }
  CUresult result = use(made->card, GRANULARITY);
  if (result) return result;
  struct block *fresh = malloc(sizeof *fresh);
  *fresh = (struct block){new_address(GRANULARITY), made->context, 0, blocks};
  blocks = made->block = fresh;
  made->at = fresh->at;
  return CUDA_SUCCESS;
}

/* With `lock` held. */
static void end_block(struct block *block, int card) {
  struct block **link = &blocks;
  struct allocation *again = malloc(sizeof *again);
  while (*link != block) link = &(*link)->next;
  *link = block->next;
  *again = (struct allocation){.at = block->at, .size = GRANULARITY, .next = freed};
  freed = again;
  free(block);
  unuse_bytes(card, GRANULARITY);
}

static CUresult take_of(int card, CUdeviceptr *out, size_t size) {
  CHECK_CURRENT;
  if (!out || !size) return CUDA_ERROR_INVALID_VALUE; /* seen */
  if (is_prohibited()) return CAPTURE_UNSUPPORTED;
  pthread_mutex_lock(&lock);
  CUcontext context = base_of(current);
  struct allocation made = {.size = size, .card = card, .context = context};
  CUresult result = begin_context(context);
  int shares_block = card != HOST && size < GRANULARITY;
  if (!result) result = shares_block ? take_place(&made) : use(card, whole_blocks(size));
  if (!result && shares_block) made.block->allocations++;
  if (!result) *out = link_allocation(made);
  pthread_mutex_unlock(&lock);
  return result;
}
static CUresult take(CUdeviceptr *out, size_t size) { return take_of(current ? current->card : HOST, out, size); }

/* With `lock` held. */
static void end_allocation(struct allocation **link, int observed) {
  struct allocation *one = *link;
  CUmemoryPool pool = one->pool;
  if (pool) {
    pool->used -= one->size;
    if (!observed) pool->unobserved += one->size;
    if (pool->destroyed && !pool->used) {
      pool->unobserved = 0;
      shrink(pool, 0);
    }
  } else if (!one->block) {
    unuse_bytes(one->card, whole_blocks(one->size));
  }
  *link = one->next;
  if (one->block) {
    if (!--one->block->allocations) end_block(one->block, one->card);
    free(one);
    return;
  }
  one->next = freed;
  freed = one;
}

static CUresult give_back(CUdeviceptr at, int observed) {
  CHECK_CURRENT;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct allocation **link = &allocations;
  while (*link && (*link)->at != at) link = &(*link)->next;
  if (*link) {
    end_allocation(link, observed);
    result = CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  if (free_ns) sleep_until(now() + free_ns);
  return result;
}

API CUresult cuMemGetInfo_v2(size_t *left, size_t *all) {
  CHECK_CURRENT;
  if (left) *left = total - used_by_all(current->card);
  if (all) *all = total;
  return CUDA_SUCCESS;
}
API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) { return take(out, size); }
API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags) {
  return flags == 1 || flags == 2 ? take(out, size) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  if (!pitch || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
  *pitch = (width + 511) & ~(size_t)511;
  return take(out, *pitch * height);
}
API CUresult cuMemFree_v2(CUdeviceptr at) { return at ? give_back(at, 1) : CUDA_SUCCESS; } /* seen: twice, and of 42, 1 */

/* Pools */

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= count) return INVALID_DEVICE;
  *out = &pools[device];
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= count) return INVALID_DEVICE;
  *out = current_pools[device];
  return CUDA_SUCCESS;
}
API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  if (device < 0 || device >= count) return INVALID_DEVICE;
  if (!pool || pool->card != device) return CUDA_ERROR_INVALID_VALUE; /* it must be local to the device */
  current_pools[device] = pool;
  return CUDA_SUCCESS;
}
/* Managed pools are those of cuMemGetDefaultMemPool only; a card has all of their memory here. */
static int pool_place(const CUmemLocation *location, int type, int *card) {
  *card = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : HOST;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return 0;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return *card >= 0 && *card < count;
  return location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}
API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
  int card, is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (!out || !location || (is_managed && !current)) return CUDA_ERROR_INVALID_VALUE;
  if (is_managed) managed_pool.card = current->card;
  else if (!pool_place(location, type, &card)) return CUDA_ERROR_INVALID_VALUE;
  *out = is_managed ? &managed_pool : card == HOST ? &host_pool : &pools[card];
  return CUDA_SUCCESS;
}
API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
  CUresult result = cuMemGetDefaultMemPool(out, location, type);
  if (!result && *out != &managed_pool && (*out)->card != HOST) *out = current_pools[(*out)->card];
  return result;
}
API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *p) {
  int card;
  if (!out || !p || !pool_place(&p->location, p->allocType, &card)) return CUDA_ERROR_INVALID_VALUE; /* seen: NULL */
  if (p->location.type == CU_MEM_LOCATION_TYPE_HOST && p->handleTypes) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  *out = calloc(1, sizeof **out);
  (*out)->card = card;
  (*out)->next = all_pools;
  all_pools = *out;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
/* It gives nothing back of what was freed before the host synchronised (seen). */
API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  CHECK_USABLE;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  if (is_prohibited()) return CAPTURE_UNSUPPORTED;
  pthread_mutex_lock(&lock);
  shrink(pool, keep);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
/* The memory is free once all of it that was allocated is. */
API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  int is_default = pool == &host_pool || pool == &managed_pool || (pool >= pools && pool < pools + MAX_CARDS);
  if (!pool || is_default) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  pool->destroyed = 1;
  pool->threshold = 0;
  for (int i = 0; i < count; i++) {
    if (current_pools[i] == pool) current_pools[i] = &pools[i];
  }
  if (!pool->used) {
    pool->unobserved = 0;
    shrink(pool, 0);
  }
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
/* A handle that was destroyed ends the program, as it may on the card. */
static void check_pool(CUmemoryPool pool) {
  if (!pool->destroyed) return;
  fprintf(stderr, "fake CUDA: a memory pool is used that was destroyed\n");
  abort();
}
API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  CHECK_USABLE;
  if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
  if (is_prohibited()) return CAPTURE_UNSUPPORTED;
  check_pool(pool);
  *(uint64_t *)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved : pool->used;
  return CUDA_SUCCESS;
}
API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  if (!pool || !value || attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return CUDA_ERROR_INVALID_VALUE;
  pool->threshold = *(uint64_t *)value;
  return CUDA_SUCCESS;
}
static struct CUstream_st *stream_of(CUstream stream, int per_thread) {
  if (stream == CU_STREAM_PER_THREAD || (!stream && per_thread)) return &thread_stream;
  return !stream || stream == CU_STREAM_LEGACY ? &default_stream : stream;
}
API CUresult cuStreamGetCtx(CUstream stream, CUcontext *out) {
  struct CUstream_st *its = stream_of(stream, 0);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = its->context ? its->context : current;
  return CUDA_SUCCESS;
}
/* Return the address of memory that a graph is to have. With `lock` held. */
static CUdeviceptr add_graph_memory(CUgraph graph, int card, size_t size) {
  graph->card = card;
  graph->memory += whole_blocks(size);
  next_graph_address += whole_blocks(size);
  return next_graph_address - whole_blocks(size);
}

/* `pool` NULL: the one that is current to the stream's device. */
static CUresult take_of_pool(CUdeviceptr *out, size_t size, CUmemoryPool pool, struct CUstream_st *stream) {
  CUcontext context = stream->context ? stream->context : current;
  CHECK_USABLE;
  if (!context) return INVALID_CONTEXT;
  if (!out || !size) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capturing) { /* it becomes a node of the graph */
    pthread_mutex_lock(&lock);
    *out = add_graph_memory(stream->graph, context->card, size);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
  }
  if (is_prohibited()) return CAPTURE_UNSUPPORTED;
  if (!pool) pool = current_pools[context->card];
  check_pool(pool);
  pthread_mutex_lock(&lock);
  size_t more = pool->used + size > pool->reserved ? whole_blocks(pool->used + size - pool->reserved) : 0;
  CUresult result = use(pool->card, more);
  if (!result) {
    pool->used += size, pool->reserved += more;
    if (pool->used + pool->unobserved > pool->reserved) pool->unobserved = pool->reserved - pool->used; /* used again */
    *out = link_allocation((struct allocation){.size = size, .card = pool->card, .pool = pool});
  }
  pthread_mutex_unlock(&lock);
  return result;
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  return pool ? take_of_pool(out, size, pool, stream_of(stream, 0)) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  return pool ? take_of_pool(out, size, pool, stream_of(stream, 1)) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream) {
  return take_of_pool(out, size, NULL, stream_of(stream, 0));
}
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream) {
  return take_of_pool(out, size, NULL, stream_of(stream, 1));
}
/* Memory that is not of the graph cannot be freed by a captured call. */
static CUresult free_async(CUdeviceptr at, struct CUstream_st *stream) {
  if (!stream->capturing) return give_back(at, 0);
  return at >= GRAPH_ADDRESSES && at < next_graph_address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) { return free_async(at, stream_of(stream, 0)); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream) { return free_async(at, stream_of(stream, 1)); }

/* Virtual memory. What it refuses: a size that is no multiple of the granularity, a mapping of an address that was not reserved
 * (both seen), a mapping over another, or beyond the memory, and the unmapping of a part of a mapping. */

/* With `lock` held. */
static void unuse(struct physical *physical) {
  if (--physical->references) return;
  if (!physical->is_foreign) unuse_bytes(physical->card, physical->size);
  free(physical);
}

/* A descriptor may be closed at any time, and be a copy: so look at all of the process. With `lock` held. */
static void look_at_exports(void) {
  struct stat file;
  if (!exports) return;
  for (struct export **link = &exports, *one; (one = *link);) {
    DIR *folder = opendir("/proc/self/fd");
    int is_open = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
      is_open |= !fstatat(dirfd(folder), entry->d_name, &file, 0) && file.st_ino == one->inode;
    }
    if (folder) closedir(folder);
    if (is_open) {
      link = &one->next;
      continue;
    }
    *link = one->next;
    unuse(one->physical);
    free(one);
  }
}

/* With `lock` held. */
static struct handle *find_handle(CUmemGenericAllocationHandle value) {
  struct handle *one = handles;
  while (one && one->value != value) one = one->next;
  return one;
}

/* Return a handle: a value that is neither a handle nor mapped, unless it is given. With `lock` held. */
static CUmemGenericAllocationHandle add_handle(struct physical *physical, CUmemGenericAllocationHandle value) {
  struct handle *made = malloc(sizeof *made);
  for (CUmemGenericAllocationHandle next = 0x1000; !value; next += 0x10) {
    struct mapping *mapping = mappings;
    while (mapping && mapping->handle != next) mapping = mapping->next;
    if (!mapping && !find_handle(next)) value = next;
  }
  physical->references++;
  *made = (struct handle){value, 1, physical, handles};
  handles = made;
  return value;
}

/* With `lock` held. */
static CUresult create(CUmemGenericAllocationHandle *out, size_t size, int card, int is_foreign) {
  CHECK_USABLE;
  look_at_exports();
  CUresult result = is_foreign ? CUDA_SUCCESS : use(card, size);
  if (result) return result;
  struct physical *physical = malloc(sizeof *physical);
  *physical = (struct physical){size, card, 0, is_foreign};
  *out = add_handle(physical, 0);
  return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *p,
                         unsigned long long flags) {
  if (!out || !p || flags || p->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (!size || size % GRANULARITY) return CUDA_ERROR_INVALID_VALUE;
  int on_card = p->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (on_card ? p->location.id < 0 || p->location.id >= count : p->location.type < CU_MEM_LOCATION_TYPE_HOST) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  pthread_mutex_lock(&lock);
  CUresult result = create(out, size, on_card ? p->location.id : HOST, 0);
  pthread_mutex_unlock(&lock);
  return result;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle value) {
  pthread_mutex_lock(&lock);
  struct handle **link = &handles, *one;
  while ((one = *link) && one->value != value) link = &one->next;
  if (one && !--one->references) {
    *link = one->next;
    unuse(one->physical);
    free(one);
  }
  pthread_mutex_unlock(&lock);
  return one ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle value) {
  pthread_mutex_lock(&lock);
  struct handle *one = find_handle(value);
  if (one && out) {
    int host = one->physical->card == HOST;
    *out = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    out->location.type = host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    out->location.id = host ? 0 : one->physical->card;
  }
  pthread_mutex_unlock(&lock);
  return one && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
  (void)alignment, (void)wish;
  if (!out || !size || size % GRANULARITY || flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct reservation *made = malloc(sizeof *made);
  *made = (struct reservation){next_address, size, reservations};
  next_address += size;
  *out = made->at;
  reservations = made;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle value,
                      unsigned long long flags) {
  if (!size || size % GRANULARITY || offset || flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct handle *one = find_handle(value);
  struct reservation *reserved = reservations;
  while (reserved && (at < reserved->at || at + size > reserved->at + reserved->size)) reserved = reserved->next;
  struct mapping *over = mappings;
  while (over && (over->at >= at + size || over->at + over->size <= at)) over = over->next;
  int allowed = one && size <= one->physical->size && reserved && !over;
  if (allowed) {
    struct mapping *mapping = malloc(sizeof *mapping);
    *mapping = (struct mapping){at, size, value, one->physical, mappings};
    mappings = mapping;
    one->physical->references++;
  }
  pthread_mutex_unlock(&lock);
  return allowed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
/* The handle is the one that was mapped, also when it was released. */
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
  CUdeviceptr at = (CUdeviceptr)address;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct mapping *mapping = mappings;
  while (mapping && (at < mapping->at || at >= mapping->at + mapping->size)) mapping = mapping->next;
  if (mapping) {
    struct handle *one = find_handle(mapping->handle);
    if (one) one->references++;
    else add_handle(mapping->physical, mapping->handle);
    *out = mapping->handle;
  }
  pthread_mutex_unlock(&lock);
  return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
/* A range may have several mappings, as in NVIDIA's sample of a vector that grows (cuda-samples, vectorAddMMAP). */
API CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  size_t mapped = 0;
  pthread_mutex_lock(&lock);
  for (struct mapping *one = mappings; one; one = one->next) {
    if (one->at >= at && one->at + one->size <= at + size) mapped += one->size;
  }
  for (struct mapping **link = &mappings, *one; mapped == size && size && (one = *link);) {
    if (one->at < at || one->at >= at + size) {
      link = &one->next;
      continue;
    }
    *link = one->next;
    unuse(one->physical);
    free(one);
  }
  pthread_mutex_unlock(&lock);
  return size && mapped == size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A descriptor says which memory it is: by its process and its address there. */
struct shared {
  pid_t pid;
  int card;
  size_t size;
};
API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle value, int type, unsigned long long flags) {
  if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct handle *one = find_handle(value);
  struct stat file;
  int fd = one ? memfd_create("fake-cuda", MFD_CLOEXEC) : -1;
  if (fd >= 0) {
    struct shared shared = {getpid(), one->physical->card, one->physical->size};
    struct export *made = malloc(sizeof *made);
    if (fstat(fd, &file) || pwrite(fd, &shared, sizeof shared, 0) != sizeof shared) abort();
    *made = (struct export){file.st_ino, one->physical, exports};
    exports = made;
    one->physical->references++;
    *(int *)out = fd;
  }
  pthread_mutex_unlock(&lock);
  return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
/* The handle is another one in the same process too: nothing says that it is the same. */
API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle, int type) {
  struct shared shared;
  struct stat file;
  int fd = (int)(intptr_t)handle;
  if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &file)) return CUDA_ERROR_INVALID_VALUE;
  if (pread(fd, &shared, sizeof shared, 0) != sizeof shared) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&lock);
  struct export *one = exports;
  while (one && one->inode != file.st_ino) one = one->next;
  if (one) *out = add_handle(one->physical, 0);
  else result = create(out, shared.size, shared.card, 1);
  pthread_mutex_unlock(&lock);
  return result;
}

/* Arrays. One that is sparse, or mapped later, has no memory but what is mapped into it. */

static size_t bytes_of(int format) { return format == 0x20 || format == 0x0a || format == 0x03 ? 4 : format & 2 ? 2 : 1; }
/* The limits of each kind of array, as a card's attributes say them (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE…; for compute capability
 * 6.0 and later, and the side of a 3D array seen). Layers are given in the place of the depth. */
enum array_kind { PLAIN, MIPMAPPED };
static int is_too_large(const CUDA_ARRAY3D_DESCRIPTOR *d, enum array_kind kind) {
  static const struct {
    size_t width, height, depth;
  } limits[2][3] = {
    {{131072, 0, 0}, {131072, 65536, 0}, {16384, 16384, 16384}},
    {{32768, 0, 0}, {32768, 32768, 0}, {16384, 16384, 16384}},
  }, layered[2] = {{32768, 0, 2048}, {32768, 32768, 2048}};
  int sides = d->Depth ? 2 : d->Height ? 1 : 0;
  int is_layered = d->Flags & CUDA_ARRAY3D_LAYERED;
  size_t width = is_layered ? layered[d->Height > 0].width : limits[kind][sides].width;
  size_t height = is_layered ? layered[d->Height > 0].height : limits[kind][sides].height;
  size_t depth = is_layered ? layered[0].depth : limits[kind][sides].depth;
  return d->Width > width || d->Height > height || d->Depth > depth || (is_layered && !d->Depth);
}
static CUresult take_array(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, enum array_kind kind) {
  size_t height = d->Height ? d->Height : 1, depth = d->Depth ? d->Depth : 1;
  if (!d->Width || !d->NumChannels) return CUDA_ERROR_INVALID_VALUE;
  if (is_too_large(d, kind)) return CUDA_ERROR_INVALID_VALUE;
  int mapped = d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
  int card = current && !mapped ? current->card : HOST;
  return take_of(card, (CUdeviceptr *)out, d->Width * height * depth * d->NumChannels * bytes_of(d->Format));
}
/* With `lock` held. */
static void unmap_tiles(CUdeviceptr array) {
  for (struct mapping **link = &tiles, *one; (one = *link);) {
    if (one->at != array) {
      link = &one->next;
      continue;
    }
    *link = one->next;
    unuse(one->physical);
    free(one);
  }
}
static CUresult give_back_array(CUdeviceptr array) {
  CUresult result = give_back(array, 1);
  pthread_mutex_lock(&lock);
  if (!result) unmap_tiles(array);
  pthread_mutex_unlock(&lock);
  return result;
}
API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  return out && d ? take_array(out, d, PLAIN) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  if (!out || !d) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR flat = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
  return take_array(out, &flat, PLAIN);
}
API CUresult cuArrayDestroy(CUarray array) { return give_back_array((CUdeviceptr)array); }
/* The number of levels is brought into its limits (cuda.h). */
API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  (void)levels;
  return out && d ? take_array((CUarray *)out, d, MIPMAPPED) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { return give_back_array((CUdeviceptr)array); }
/* An array is mapped as a whole, as one of CUDA_ARRAY3D_DEFERRED_MAPPING is. */
API CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned number, CUstream stream) {
  (void)stream;
  CUresult result = list ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < number && !result; i++) {
    int maps = list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    struct handle *one = maps ? find_handle(list[i].memHandle) : NULL;
    if (list[i].reserved[0] || list[i].reserved[1] || list[i].flags || !one != !maps) {
      result = CUDA_ERROR_INVALID_VALUE;
      continue;
    }
    unmap_tiles((CUdeviceptr)list[i].resource);
    if (!maps) continue;
    struct mapping *made = malloc(sizeof *made);
    *made = (struct mapping){(CUdeviceptr)list[i].resource, 0, one->value, one->physical, tiles};
    tiles = made;
    one->physical->references++;
  }
  pthread_mutex_unlock(&lock);
  return result;
}
API CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned number, CUstream stream) {
  return cuMemMapArrayAsync(list, number, stream);
}

/* What ends with a context: memory of cuMemAlloc and its kind, and arrays; not that of pools and of cuMemCreate. With `lock`
 * held. */
static void end_context(CUcontext context) {
  for (struct allocation **link = &allocations; *link;) {
    if ((*link)->context != context) {
      link = &(*link)->next;
      continue;
    }
    unmap_tiles((*link)->at);
    end_allocation(link, 1);
  }
  card_end(&context->work);
  if (context->has_memory) vacate(context->card, context_bytes);
  context->has_memory = 0;
}

/* Work */

API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  (void)image;
  CHECK_CURRENT;
  *out = (CUmodule)current;
  return CUDA_SUCCESS;
}
API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  CHECK_USABLE;
  *out = malloc(sizeof **out);
  (*out)->kind = !strcmp(name, "fault") ? FAULT : !strcmp(name, "meet") ? MEET : WORK;
  (*out)->context = base_of((CUcontext)module);
  return CUDA_SUCCESS;
}
API CUresult cuStreamCreate(CUstream *out, unsigned flags) {
  CHECK_CURRENT;
  if (!out || flags > 1) return CUDA_ERROR_INVALID_VALUE;
  *out = calloc(1, sizeof **out);
  (*out)->context = current;
  (*out)->is_free = flags;
  return CUDA_SUCCESS;
}
API CUresult cuStreamDestroy_v2(CUstream stream) { /* its work goes on */
  CHECK_USABLE;
  if (!stream) return INVALID_HANDLE;
  free(stream);
  return CUDA_SUCCESS;
}

static CUcontext context_of(const struct CUstream_st *stream) { return base_of(stream->context ? stream->context : current); }

/* Return the end of the stream's work. The legacy stream's is that of all streams for which it waits. */
static int64_t end_of(const struct CUstream_st *stream, CUcontext context) {
  if (stream == &default_stream) return context->blocking_end;
  return stream->used_in == context ? stream->end : 0;
}

/* Put work into a stream, and note in `end` where it ends; not if it becomes a part of a graph. */
static CUresult enqueue(struct CUstream_st *stream, CUfunction f, int64_t us, void **params) {
  CHECK_CURRENT;
  CUcontext context = context_of(stream);
  if (f && (f->context != base_of(current) || context != f->context)) return INVALID_HANDLE; /* all are of one context */
  if (is_implicit(stream)) return CAPTURE_IMPLICIT;
  if (stream->capturing) {
    if (stream->is_invalid) return CAPTURE_INVALIDATED;
    stream->captured_us += us;
    return CUDA_SUCCESS;
  }
  if (launch_ns) sleep_until(now() + launch_ns);
  int64_t t = now();
  if (f && f->kind == MEET) stream->end = card_meet(&context->work, *(int64_t *)params[0], *(int32_t *)params[1]);
  else stream->end = card_submit(&context->work, us * 1000, &t);
  stream->used_in = context;
  context->end = stream->end;
  if (!stream->is_free) context->blocking_end = stream->end;
  if (f && f->kind == FAULT && !atomic_load(&fault.work)) {
    card_close(&context->work);
    fault.end = stream->end;
    atomic_store(&fault.work, &context->work);
  }
  atomic_fetch_add(&cards[context->card]->launches, 1);
  if (return_ns) sleep_until(now() + return_ns);
  if (launch_log >= 0 && write(launch_log, &t, sizeof t) != sizeof t) return INVALID_CONTEXT;
  return CUDA_SUCCESS;
}
static CUresult launch(struct CUstream_st *stream, CUfunction f, int64_t us, void **params) {
  if (!f) return INVALID_HANDLE; /* seen */
  return us > 0 ? enqueue(stream, f, us, params) : CUDA_ERROR_INVALID_VALUE; /* a grid has blocks */
}

/* What a share of a card does not get to, and the fake does not simulate further. */
#define NOT_SIMULATED(name, ...) \
  API CUresult name(__VA_ARGS__) { return CUDA_SUCCESS; }
NOT_SIMULATED(cuMemAlloc, unsigned *out, unsigned size)
NOT_SIMULATED(cuMemAllocPitch, unsigned *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
NOT_SIMULATED(cuArrayCreate, CUarray *out, const void *descriptor)
NOT_SIMULATED(cuArray3DCreate, CUarray *out, const void *descriptor)
#define IGNORED (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define KERNEL(per_thread) \
  IGNORED; \
  return launch(stream_of(stream, per_thread), f, gx, params)
API CUresult cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
  (void)extra;
  KERNEL(0);
}
API CUresult cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
  (void)extra;
  KERNEL(1);
}
API CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params) { KERNEL(0); }
API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params) { KERNEL(1); }
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  (void)extra;
  return config ? launch(stream_of(config->hStream, 0), f, config->gridDimX, params) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  (void)extra;
  return config ? launch(stream_of(config->hStream, 1), f, config->gridDimX, params) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned number, unsigned flags) {
  CUresult result = list && number ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  (void)flags;
  for (unsigned i = 0; i < number && !result; i++) {
    result = launch(stream_of(list[i].hStream, 0), list[i].function, list[i].gridDimX, list[i].kernelParams);
  }
  return result;
}
API CUresult cuLaunchGrid(CUfunction f, int width, int height) {
  (void)height;
  return launch(&default_stream, f, width, NULL);
}
API CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  (void)height;
  return launch(stream_of(stream, 0), f, width, NULL);
}
API CUresult cuLaunch(CUfunction f) { return cuLaunchGrid(f, 1, 1); }
/* Memory of graphs. Nothing is taken when a node is added and when a graph is instantiated; what an instance took stays after it is
 * gone, for other instances, until it is trimmed (all seen). */

API CUresult cuGraphCreate(CUgraph *out, unsigned flags) {
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  *out = calloc(1, sizeof **out);
  return CUDA_SUCCESS;
}
API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t number,
                                    CUDA_MEM_ALLOC_NODE_PARAMS *p) {
  CHECK_USABLE;
  (void)after;
  int card;
  if (!node || !graph || !p || !p->bytesize || number) return CUDA_ERROR_INVALID_VALUE;
  if (!pool_place(&p->poolProps.location, p->poolProps.allocType, &card) || card == HOST) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  p->dptr = add_graph_memory(graph, card, p->bytesize);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t number, CUgraphNodeParams *p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  if (p->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return CUDA_ERROR_NOT_SUPPORTED; /* no other is simulated */
  return cuGraphAddMemAllocNode(node, graph, after, number, &p->alloc);
}
API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t number,
                               CUgraphNodeParams *p) {
  return edges ? CUDA_ERROR_NOT_SUPPORTED : cuGraphAddNode(node, graph, after, number, p);
}
API CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t number,
                               CUgraphNodeParams *p) {
  return cuGraphAddNode_v2(node, graph, after, edges, number, p);
}

static CUresult upload(CUgraphExec instance) {
  CHECK_USABLE;
  if (!instance) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = instance->made.memory;
  int card = instance->made.card;
  if (instance->has_memory || !bytes) return CUDA_SUCCESS;
  pthread_mutex_lock(&lock);
  size_t again = bytes < idle_graph_memory[card] ? bytes : idle_graph_memory[card];
  CUresult result = use(card, bytes - again);
  if (!result) {
    idle_graph_memory[card] -= again;
    graph_memory[card] += bytes - again;
    instance->has_memory = 1;
  }
  pthread_mutex_unlock(&lock);
  return result;
}
API CUresult cuGraphUpload(CUgraphExec instance, CUstream stream) {
  (void)stream;
  return upload(instance);
}
API CUresult cuGraphUpload_ptsz(CUgraphExec instance, CUstream stream) { return cuGraphUpload(instance, stream); }
API CUresult cuGraphDestroy(CUgraph graph) { return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
API CUresult cuGraphExecDestroy(CUgraphExec instance) {
  if (!instance) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  instance->graph->instances--;
  if (instance->has_memory) idle_graph_memory[instance->made.card] += instance->made.memory;
  pthread_mutex_unlock(&lock);
  free(instance);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGraphMemTrim(CUdevice device) {
  if (device < 0 || device >= count) return INVALID_DEVICE;
  pthread_mutex_lock(&lock);
  unuse_bytes(device, idle_graph_memory[device]);
  graph_memory[device] -= idle_graph_memory[device];
  idle_graph_memory[device] = 0;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
  if (device < 0 || device >= count) return INVALID_DEVICE;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) return CUDA_ERROR_NOT_SUPPORTED; /* no other is simulated */
  *(uint64_t *)value = graph_memory[device];
  return CUDA_SUCCESS;
}

static CUresult launch_graph(CUgraphExec graph, struct CUstream_st *stream) {
  CUresult result = upload(graph);
  return result ? result : enqueue(stream, NULL, graph->made.us, NULL);
}
API CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream_of(stream, 0)); }
API CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream_of(stream, 1)); }

static CUresult begin_capture(struct CUstream_st *stream, CUstreamCaptureMode mode) {
  CHECK_USABLE;
  if (!stream->context && !current) return INVALID_CONTEXT;
  if (stream == &default_stream) return CAPTURE_UNSUPPORTED; /* the legacy stream cannot be captured */
  if (stream->capturing || mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
  stream->capturing = 1;
  stream->captured_us = stream->captured_events = stream->is_invalid = 0;
  stream->graph = calloc(1, sizeof *stream->graph);
  stream->captured_in = context_of(stream);
  stream->mode = (enum mode)mode;
  stream->capturer = &thread_mode;
  pthread_mutex_lock(&capture_lock);
  stream->next_capture = captures;
  captures = stream;
  pthread_mutex_unlock(&capture_lock);
  return CUDA_SUCCESS;
}
API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream_of(stream, 0), mode);
}
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream_of(stream, 1), mode);
}
static CUresult end_capture(struct CUstream_st *stream, CUgraph *graph) {
  CHECK_USABLE;
  if (!graph || !stream->capturing) return CUDA_ERROR_INVALID_VALUE;
  if (stream->mode != RELAXED && stream->capturer != &thread_mode) return CAPTURE_OF_OTHER_THREAD;
  pthread_mutex_lock(&capture_lock);
  struct CUstream_st **link = &captures;
  while (*link != stream) link = &(*link)->next_capture;
  *link = stream->next_capture;
  pthread_mutex_unlock(&capture_lock);
  stream->capturing = 0;
  *graph = NULL;
  if (stream->is_invalid) return CAPTURE_INVALIDATED;
  *graph = stream->graph;
  (*graph)->us = stream->captured_us;
  (*graph)->events = stream->captured_events;
  return CUDA_SUCCESS;
}
API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { return end_capture(stream_of(stream, 0), graph); }
API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) { return end_capture(stream_of(stream, 1), graph); }
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  (void)flags;
  if (!out || !graph || (graph->memory && graph->instances)) return CUDA_ERROR_INVALID_VALUE;
  *out = malloc(sizeof **out);
  **out = (struct CUgraphExec_st){.made = *graph, .graph = graph};
  graph->instances++;
  return CUDA_SUCCESS;
}
API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *text, size_t length) {
  (void)node, (void)text, (void)length;
  return cuGraphInstantiateWithFlags(out, graph, 0);
}
API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *text, size_t length) {
  return cuGraphInstantiate_v2(out, graph, node, text, length);
}
API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, uint64_t *params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = cuGraphInstantiateWithFlags(out, graph, 0);
  if (!result && (*params & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) result = upload(*out);
  return result;
}
API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, uint64_t *params) {
  return cuGraphInstantiateWithParams(out, graph, params);
}
static CUresult capture_info(struct CUstream_st *stream, CUstreamCaptureStatus *status, CUgraph *graph) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  *status = stream->capturing ? 1 : 0;
  if (graph && stream->capturing) *graph = stream->graph;
  return CUDA_SUCCESS;
}
API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                       const CUgraphNode **nodes, size_t *number) {
  (void)id, (void)nodes, (void)number;
  return capture_info(stream_of(stream, 0), status, graph);
}
API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                            const CUgraphNode **nodes, size_t *number) {
  (void)id, (void)nodes, (void)number;
  return capture_info(stream_of(stream, 1), status, graph);
}
static CUresult is_capturing(struct CUstream_st *stream, CUstreamCaptureStatus *out) {
  CHECK_USABLE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (stream == &default_stream && is_forbidden(BY_LEGACY_STREAM, 0)) return CAPTURE_IMPLICIT; /* the capture goes on (seen) */
  *out = !stream->capturing ? 0 : stream->is_invalid ? 2 : 1;
  return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out) {
  return is_capturing(stream_of(stream, 0), out);
}
API CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *out) {
  return is_capturing(stream_of(stream, 1), out);
}
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  if (!mode || *mode < GLOBAL || *mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
  enum mode before = thread_mode;
  thread_mode = (enum mode)*mode;
  *mode = before;
  return CUDA_SUCCESS;
}
/* Return why the thread may not ask for the work of the stream. */
static CUresult refuse_question(struct CUstream_st *stream) {
  CHECK_USABLE;
  if (!stream->context && !current) return INVALID_CONTEXT;
  if (is_implicit(stream)) return CAPTURE_IMPLICIT;
  return stream->capturing || is_prohibited() ? CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
static CUresult synchronise(struct CUstream_st *stream) {
  CUresult result = refuse_question(stream);
  if (result) return result;
  CUcontext context = context_of(stream);
  card_wait(&context->work, end_of(stream, context));
  CHECK_USABLE;
  synchronised();
  return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream stream) { return synchronise(stream_of(stream, 0)); }
API CUresult cuStreamSynchronize_ptsz(CUstream stream) { return synchronise(stream_of(stream, 1)); }
static CUresult query(struct CUstream_st *stream) {
  CUresult result = refuse_question(stream);
  if (result) return result;
  CUcontext context = context_of(stream);
  int reached = card_reached(&context->work, end_of(stream, context));
  CHECK_USABLE;
  return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API CUresult cuStreamQuery(CUstream stream) { return query(stream_of(stream, 0)); }
API CUresult cuStreamQuery_ptsz(CUstream stream) { return query(stream_of(stream, 1)); }
/* Copies wait for the legacy stream, as those of memory that is not pinned do; nothing is copied. */
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
  (void)to, (void)from, (void)size;
  return synchronise(&default_stream);
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
  (void)to, (void)from, (void)size;
  return synchronise(&default_stream);
}
API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) {
  CHECK_CURRENT;
  if (!out || !size || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  if (is_prohibited()) return CAPTURE_UNSUPPORTED;
  *out = calloc(1, size);
  return CUDA_SUCCESS;
}
API CUresult cuMemFreeHost(void *memory) {
  CHECK_CURRENT;
  free(memory);
  return CUDA_SUCCESS;
}
API CUresult cuEventCreate(CUevent *out, unsigned flags) {
  CHECK_CURRENT;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = calloc(1, sizeof **out);
  (*out)->context = current;
  (*out)->is_timed = !(flags & 2); /* CU_EVENT_DISABLE_TIMING */
  atomic_fetch_add(&live_events, 1);
  return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(CUevent event) {
  if (!event) return INVALID_HANDLE;
  card_unmark(&event->mark);
  free(event);
  atomic_fetch_sub(&live_events, 1);
  return CUDA_SUCCESS;
}
/* An event that is recorded in a capture becomes a part of the graph, and cannot be waited for. */
static CUresult record(CUevent event, struct CUstream_st *stream) {
  CHECK_USABLE;
  if (!stream->context && !current) return INVALID_CONTEXT;
  if (!event || event->context != (stream->context ? stream->context : current)) { /* cuEventRecord (cuda.h) */
    atomic_fetch_add(&refused_records, 1);
    return INVALID_HANDLE;
  }
  if (is_implicit(stream)) return CAPTURE_IMPLICIT;
  event->captured = stream->capturing;
  event->is_recorded = 1;
  stream->captured_events += stream->capturing ? 1 : 0;
  if (stream->capturing) return CUDA_SUCCESS;
  CUcontext context = context_of(stream);
  card_mark(&event->mark, &context->work, end_of(stream, context));
  return CUDA_SUCCESS;
}
API CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream_of(stream, 0)); }
API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return record(event, stream_of(stream, 1)); }
static CUresult look_at(CUevent event) {
  CHECK_USABLE;
  if (!event) return INVALID_HANDLE;
  return event->captured ? CAPTURED_EVENT : is_prohibited() ? CAPTURE_UNSUPPORTED : 0;
}
API CUresult cuEventQuery(CUevent event) {
  CUresult result = look_at(event);
  if (result) return result;
  int passed = card_passed(&event->mark);
  CHECK_USABLE;
  return passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API CUresult cuEventSynchronize(CUevent event) {
  CUresult result = look_at(event);
  if (result) return result;
  card_pass(&event->mark);
  CHECK_USABLE;
  synchronised();
  return CUDA_SUCCESS;
}
API CUresult cuEventElapsedTime(float *ms, CUevent first, CUevent second) {
  CHECK_USABLE;
  if (!first || !second || first->context != second->context) return INVALID_HANDLE;
  if (!first->is_timed || !second->is_timed || !first->is_recorded || !second->is_recorded) return INVALID_HANDLE;
  if (first->captured || second->captured) return CAPTURED_EVENT;
  if (!card_passed(&first->mark) || !card_passed(&second->mark)) return CUDA_ERROR_NOT_READY;
  *ms = (float)((second->mark.at - first->mark.at) / 1e6); /* all time counts, also the slices of another context */
  return CUDA_SUCCESS;
}

API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, CUdriverProcAddressQueryResult *how) {
  (void)version;
  if (!name || !out) return CUDA_ERROR_INVALID_VALUE;
  static void *self;
  static const char *const endings[] = {"_v2", ""};
  const char *asked = getenv("FAKE_CUDA_ASKED");
  FILE *list = asked ? fopen(asked, "a") : NULL;
  char full[256];
  if (list) {
    fprintf(list, "%s %d\n", name, (int)flags);
    fclose(list);
  }
  if (!self) {
    Dl_info where;
    self = dladdr((void *)cuInit, &where) ? dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  }
  *out = NULL;
  if (flags & 2) { /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
    snprintf(full, sizeof full, "%s_ptsz", name);
    *out = dlsym(self, full);
  }
  for (int i = 0; i < 2 && !*out && *name; i++) {
    snprintf(full, sizeof full, "%s%s", name, endings[i]);
    *out = dlsym(self, full);
  }
  if (how) *how = *out ? 0 : 1;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
API CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
API CUresult cuGetExportTable(const void **out, const CUuuid *id) {
  (void)id;
  *out = NULL;
  return CUDA_ERROR_NOT_FOUND;
}

/* Not CUDA's: for tests. */
API long long fake_cuda_worked(int card) { return card_worked(contexts[card].work.card); }
API int fake_cuda_events(CUgraph graph) { return graph->events; }
API int fake_cuda_refused_records(void) { return atomic_load(&refused_records); }
API int fake_cuda_live_events(void) { return atomic_load(&live_events); }
API void fake_cuda_counts(int card, int64_t *launches, size_t *allocated) {
  *launches = atomic_load(&cards[card]->launches);
  pthread_mutex_lock(&lock);
  look_at_exports();
  *allocated = used[card];
  pthread_mutex_unlock(&lock);
}
