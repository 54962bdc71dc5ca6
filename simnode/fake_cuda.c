/* A fake libcuda.so.1: virtual cards that several processes share, for tests and demos of what keeps a container to its share.
 *
 * A card runs one kernel after another, in the order of their launches in all processes; a kernel takes as many microseconds as
 * its grid has blocks in x. Memory is counted, not allocated; an address that was freed is the first to be given again. Copies
 * take no time. Streams of one process are in order too.
 *
 *   NVIDIA_VISIBLE_DEVICES   the UUIDs of the cards, separated by commas. Without a UUID in it: the cards that /dev has, and
 *                            of which FAKE_CUDA_DIR has a link nvidia<minor> to the UUID, as the driver would tell it
 *   FAKE_CUDA_DIR            a folder with one state file for each card, which the processes share; made when needed
 *   FAKE_CUDA_MIB            memory of a card [81008]
 *   FAKE_CUDA_ASKED          a file: a line for each function that cuGetProcAddress is asked for, name and flags [none]
 *   FAKE_CUDA_FREE_US        for so long a call that frees goes on after the memory is free [0]
 *   FAKE_CUDA_LAUNCH_US      for so long a launch goes on before its work reaches the card [0]
 *   FAKE_CUDA_LAUNCHES       a file: when the work of each launch reached the card, as int64 nanoseconds of CLOCK_MONOTONIC [none]
 *
 * What the state of a card counts, `fake_cuda_counts` returns: launches, and bytes that are allocated by this process.
 * Source of names and types: cuda-bindings (Apache-2.0), by shares/library/cu.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cu.h"

#define API __attribute__((visibility("default")))
enum { MAX_CARDS = 8, CAPTURE_UNSUPPORTED = 900, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };

struct state {
  _Atomic int64_t busy_until, launches;
};
struct CUctx_st {
  int card;
};
struct CUstream_st {
  int capturing;
  int64_t captured_us, ends;
};
struct CUevent_st {
  int64_t at;
};
struct CUgraphExec_st {
  int64_t us;
};
struct CUmemPoolHandle_st {
  size_t used, reserved;
};
struct allocation {
  CUdeviceptr at;
  size_t size;
  CUmemoryPool pool;
  int references, mappings; /* of cuMemCreate: it lives until its handle and its last mapping are gone */
  struct allocation *next;
};
struct mapping {
  CUdeviceptr at;
  CUmemGenericAllocationHandle handle;
  struct mapping *next;
};

static struct state *cards[MAX_CARDS];
static CUuuid uuids[MAX_CARDS];
static int count = -1;
static size_t total, used[MAX_CARDS];
static int64_t last_end;
static struct CUctx_st contexts[MAX_CARDS];
static struct CUmemPoolHandle_st pools[MAX_CARDS];
static struct CUstream_st default_stream;
static _Atomic int captures;
static __thread CUcontext current;
static __thread int relaxed;
static struct allocation *allocations, *freed; /* `freed`: addresses to be given again */
static struct mapping *mappings;
static int64_t free_ns, launch_ns;
static int launch_log = -1;
static CUdeviceptr next_address = 0x7f0000000000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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

static struct state *open_card(const char *uuid) {
  const char *folder = getenv("FAKE_CUDA_DIR");
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder ? folder : "/tmp", uuid);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0 || ftruncate(fd, 4096)) return NULL;
  void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return map == MAP_FAILED ? NULL : map;
}

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
  if (count == MAX_CARDS || strncmp(uuid, "GPU-", 4) || !parse_uuid(uuid, &uuids[count])) return;
  cards[count] = open_card(uuid);
  contexts[count].card = count;
  if (cards[count]) count++;
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

API CUresult cuInit(unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  if (count < 0) {
    count = 0;
    const char *names = getenv("NVIDIA_VISIBLE_DEVICES"), *mib = getenv("FAKE_CUDA_MIB"), *us = getenv("FAKE_CUDA_FREE_US");
    const char *delay = getenv("FAKE_CUDA_LAUNCH_US"), *log = getenv("FAKE_CUDA_LAUNCHES");
    char *list = strdup(names ? names : ""), *rest = list, *name;
    while ((name = strsep(&rest, ","))) add_card(name);
    free(list);
    if (!count) add_cards_of_dev();
    free_ns = us ? atoll(us) * 1000 : 0;
    launch_ns = delay ? atoll(delay) * 1000 : 0;
    if (log) launch_log = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    total = (size_t)(mib ? atoll(mib) : 81008) << 20;
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
  (void)device;
  *out = total;
  return CUDA_SUCCESS;
}

/* Contexts */

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  if (device < 0 || device >= count) return INVALID_DEVICE;
  *out = &contexts[device];
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  (void)device;
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  pthread_mutex_lock(&lock);
  for (struct allocation *one = allocations; one; one = one->next) one->size = 0;
  used[device] = 0;
  pools[device].used = pools[device].reserved = 0;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
API CUresult cuCtxDestroy_v2(CUcontext context) { return cuDevicePrimaryCtxReset_v2(context->card); }
API CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *out) {
  *out = current;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *out) {
  if (!current) return INVALID_CONTEXT;
  *out = current->card;
  return CUDA_SUCCESS;
}
static int forbidden(CUstream stream) {
  return (stream && stream->capturing) || (atomic_load(&captures) && !relaxed);
}
API CUresult cuCtxSynchronize(void) {
  if (!current) return INVALID_CONTEXT;
  if (forbidden(NULL)) return CAPTURE_UNSUPPORTED;
  sleep_until(last_end);
  return CUDA_SUCCESS;
}

/* Memory */

static CUresult take(CUdeviceptr *out, size_t size, CUmemoryPool pool) {
  if (!current) return INVALID_CONTEXT;
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  size_t more = size;
  if (pool) more = pool->used + size > pool->reserved ? pool->used + size - pool->reserved : 0;
  if (more <= total - used[current->card]) {
    used[current->card] += more;
    if (pool) pool->used += size, pool->reserved += more;
    struct allocation **link = &freed, *one;
    while (*link && (*link)->size != size) link = &(*link)->next;
    if ((one = *link)) {
      *link = one->next;
    } else {
      one = malloc(sizeof *one);
      one->at = next_address;
      next_address += (size + 0x1fffff) & ~0x1fffffULL;
    }
    *one = (struct allocation){.at = one->at, .size = size, .pool = pool, .references = 1, .next = allocations};
    allocations = one;
    *out = one->at;
    result = CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* With `lock` held. */
static struct allocation **find_allocation(CUdeviceptr at) {
  struct allocation **link = &allocations;
  while (*link && (*link)->at != at) link = &(*link)->next;
  return link;
}

/* With `lock` held. */
static void end_allocation(struct allocation **link) {
  struct allocation *one = *link;
  if (one->pool) one->pool->used -= one->size;
  else used[current->card] -= one->size;
  *link = one->next;
  one->next = freed;
  freed = one;
}

static CUresult give_back(CUdeviceptr at) {
  if (!current) return INVALID_CONTEXT;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct allocation **link = find_allocation(at);
  if (*link) {
    end_allocation(link);
    result = CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  if (free_ns) sleep_until(now() + free_ns);
  return result;
}

API CUresult cuMemGetInfo_v2(size_t *left, size_t *all) {
  if (!current) return INVALID_CONTEXT;
  *left = total - used[current->card];
  *all = total;
  return CUDA_SUCCESS;
}
API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) { return take(out, size, NULL); }
API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags) {
  (void)flags;
  return take(out, size, NULL);
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  (void)element;
  *pitch = (width + 511) & ~(size_t)511;
  return take(out, *pitch * height, NULL);
}
API CUresult cuMemFree_v2(CUdeviceptr at) { return at ? give_back(at) : CUDA_SUCCESS; }
API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  *out = &pools[device];
  return CUDA_SUCCESS;
}
API CUresult cuMemPoolCreate(CUmemoryPool *out, const void *properties) {
  (void)properties;
  *out = calloc(1, sizeof **out);
  return CUDA_SUCCESS;
}
API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  pthread_mutex_lock(&lock);
  size_t least = pool->used > keep ? pool->used : keep;
  if (pool->reserved > least) {
    used[current ? current->card : 0] -= pool->reserved - least;
    pool->reserved = least;
  }
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  pool->used = 0;
  return cuMemPoolTrimTo(pool, 0);
}
API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  *(uint64_t *)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved : pool->used;
  return CUDA_SUCCESS;
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  (void)stream;
  return take(out, size, pool);
}
API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream) {
  (void)stream;
  return current ? take(out, size, &pools[current->card]) : INVALID_CONTEXT;
}
API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
  (void)stream;
  return give_back(at);
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *p, unsigned long long flags) {
  (void)p, (void)flags;
  CUdeviceptr at;
  CUresult result = take(&at, size, NULL);
  *out = at;
  return result;
}
static CUresult unuse(CUmemGenericAllocationHandle handle, int released, int unmapped) {
  struct allocation **link = find_allocation(handle), *one = *link;
  if (!one || one->references < released) return CUDA_ERROR_INVALID_VALUE;
  one->references -= released;
  one->mappings -= unmapped;
  if (!one->references && !one->mappings) end_allocation(link);
  return CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  pthread_mutex_lock(&lock);
  CUresult result = unuse(handle, 1, 0);
  pthread_mutex_unlock(&lock);
  return result;
}
API CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags) {
  (void)size, (void)offset, (void)flags;
  pthread_mutex_lock(&lock);
  struct allocation *one = *find_allocation(h);
  if (one) {
    struct mapping *mapping = malloc(sizeof *mapping);
    *mapping = (struct mapping){at, h, mappings};
    mappings = mapping;
    one->mappings++;
  }
  pthread_mutex_unlock(&lock);
  return one ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at) {
  pthread_mutex_lock(&lock);
  struct mapping *mapping = mappings;
  while (mapping && mapping->at != (CUdeviceptr)at) mapping = mapping->next;
  if (mapping) {
    *out = mapping->handle;
    (*find_allocation(mapping->handle))->references++;
  }
  pthread_mutex_unlock(&lock);
  return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  (void)size;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct mapping **link = &mappings, *mapping;
  while (*link && (*link)->at != at) link = &(*link)->next;
  if ((mapping = *link)) {
    *link = mapping->next;
    result = unuse(mapping->handle, 0, 1);
    free(mapping);
  }
  pthread_mutex_unlock(&lock);
  return result;
}
static size_t bytes_of(int format) { return format == 0x20 || format == 0x0a || format == 0x03 ? 4 : format & 2 ? 2 : 1; }
API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  size_t height = d->Height ? d->Height : 1, depth = d->Depth ? d->Depth : 1;
  return take((CUdeviceptr *)out, d->Width * height * depth * d->NumChannels * bytes_of(d->Format), NULL);
}
API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  return take((CUdeviceptr *)out, d->Width * (d->Height ? d->Height : 1) * d->NumChannels * bytes_of(d->Format), NULL);
}
API CUresult cuArrayDestroy(CUarray array) { return give_back((CUdeviceptr)array); }
API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  (void)levels;
  return cuArray3DCreate_v2((CUarray *)out, d);
}
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { return give_back((CUdeviceptr)array); }

/* Work */

API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  (void)image;
  *out = (CUmodule)&default_stream;
  return CUDA_SUCCESS;
}
API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  (void)module, (void)name;
  *out = (CUfunction)&default_stream;
  return CUDA_SUCCESS;
}
API CUresult cuStreamCreate(CUstream *out, unsigned flags) {
  (void)flags;
  *out = calloc(1, sizeof **out);
  return CUDA_SUCCESS;
}

static CUresult enqueue(CUstream stream, int64_t us) {
  if (!current) return INVALID_CONTEXT;
  if (!stream) stream = &default_stream;
  if (stream->capturing) {
    stream->captured_us += us;
    return CUDA_SUCCESS;
  }
  if (launch_ns) sleep_until(now() + launch_ns);
  struct state *card = cards[current->card];
  int64_t free_at = atomic_load(&card->busy_until), ends, t;
  do {
    t = now();
    ends = (free_at > t ? free_at : t) + us * 1000;
  } while (!atomic_compare_exchange_weak(&card->busy_until, &free_at, ends));
  atomic_fetch_add(&card->launches, 1);
  if (launch_log >= 0 && write(launch_log, &t, sizeof t) != sizeof t) return INVALID_CONTEXT;
  stream->ends = ends;
  if (ends > last_end) last_end = ends;
  return CUDA_SUCCESS;
}

/* What a share of a card does not get to, and the fake does not simulate further. */
#define NOT_SIMULATED(name, ...) \
  API CUresult name(__VA_ARGS__) { return CUDA_SUCCESS; }
NOT_SIMULATED(cuGraphAddMemAllocNode, CUgraphNode *n, CUgraph g, const CUgraphNode *after, size_t count, void *p)
NOT_SIMULATED(cuGraphAddNode, CUgraphNode *n, CUgraph g, const CUgraphNode *after, size_t count, CUgraphNodeParams *p)
NOT_SIMULATED(cuGraphAddNode_v2, CUgraphNode *n, CUgraph g, const CUgraphNode *after, const void *edges, size_t count,
              CUgraphNodeParams *p)
NOT_SIMULATED(cuGraphAddNode_v3, CUgraphNode *n, CUgraph g, const CUgraphNode *after, const void *edges, size_t count,
              CUgraphNodeParams *p)
NOT_SIMULATED(cuMemAlloc, unsigned *out, unsigned size)
NOT_SIMULATED(cuMemAllocPitch, unsigned *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
NOT_SIMULATED(cuArrayCreate, CUarray *out, const void *descriptor)
NOT_SIMULATED(cuArray3DCreate, CUarray *out, const void *descriptor)
#define IGNORED (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
API CUresult cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
  IGNORED, (void)f, (void)extra;
  return enqueue(stream, gx);
}
API CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params) {
  IGNORED, (void)f;
  return enqueue(stream, gx);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  (void)f, (void)params, (void)extra;
  return enqueue(config->hStream, config->gridDimX);
}
API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned number, unsigned flags) {
  (void)flags;
  for (unsigned i = 0; i < number; i++) enqueue(list[i].hStream, list[i].gridDimX);
  return CUDA_SUCCESS;
}
API CUresult cuLaunchGrid(CUfunction f, int width, int height) {
  (void)f, (void)height;
  return enqueue(NULL, width);
}
API CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  (void)f, (void)height;
  return enqueue(stream, width);
}
API CUresult cuLaunch(CUfunction f) { return cuLaunchGrid(f, 1, 1); }
API CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return enqueue(stream, graph->us); }

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  stream->capturing = 1, stream->captured_us = 0;
  if (!mode) atomic_fetch_add(&captures, 1); /* global */
  return CUDA_SUCCESS;
}
API CUresult cuStreamEndCapture(CUstream stream, CUgraphExec *graph) {
  if (atomic_load(&captures)) atomic_fetch_sub(&captures, 1);
  stream->capturing = 0;
  *graph = malloc(sizeof **graph); /* a graph and its instance are one here */
  (*graph)->us = stream->captured_us;
  return CUDA_SUCCESS;
}
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraphExec graph, unsigned long long flags) {
  (void)flags;
  *out = graph;
  return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out) {
  *out = stream ? stream->capturing : 0;
  return CUDA_SUCCESS;
}
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  int was = relaxed ? 2 : 0;
  relaxed = *mode == 2;
  *mode = was;
  return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream stream) {
  if (forbidden(stream)) return CAPTURE_UNSUPPORTED;
  sleep_until(stream ? stream->ends : last_end);
  return CUDA_SUCCESS;
}
API CUresult cuEventCreate(CUevent *out, unsigned flags) {
  (void)flags;
  *out = calloc(1, sizeof **out);
  return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(CUevent event) {
  free(event);
  return CUDA_SUCCESS;
}
API CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (stream && stream->capturing) return CAPTURE_UNSUPPORTED;
  int64_t ends = stream ? stream->ends : last_end, t = now();
  event->at = ends > t ? ends : t;
  return CUDA_SUCCESS;
}
API CUresult cuEventQuery(CUevent event) {
  if (forbidden(NULL)) return CAPTURE_UNSUPPORTED;
  return now() >= event->at ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API CUresult cuEventSynchronize(CUevent event) {
  if (forbidden(NULL)) return CAPTURE_UNSUPPORTED;
  sleep_until(event->at);
  return CUDA_SUCCESS;
}
API CUresult cuEventElapsedTime(float *ms, CUevent first, CUevent second) {
  *ms = (float)((second->at - first->at) / 1e6);
  return now() >= second->at ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* The names with _ptsz are those of programs that were compiled for one default stream per thread. */
#define SAME(name) extern __typeof__(name) name##_ptsz __attribute__((alias(#name), visibility("default")))
SAME(cuMemAllocAsync);
SAME(cuMemAllocFromPoolAsync);
SAME(cuMemFreeAsync);
SAME(cuLaunchKernel);
SAME(cuLaunchKernelEx);
SAME(cuLaunchCooperativeKernel);
SAME(cuGraphLaunch);
SAME(cuStreamIsCapturing);
SAME(cuEventRecord);

API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, CUdriverProcAddressQueryResult *how) {
  (void)version;
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
API void fake_cuda_counts(int card, int64_t *launches, size_t *allocated) {
  *launches = atomic_load(&cards[card]->launches);
  *allocated = used[card];
}
