/* Allocations: none beyond the container's share, and queries that return the share.
 *
 * An amount counts before the real call, so that two processes cannot both take the last bytes, and until the memory is really
 * given back: a pool keeps what was freed into it; memory of cuMemCreate lives until its last use is gone.
 * It counts as the card has it, in whole blocks. What a context takes is known to the server, which asks the driver. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute.h"
#include "driver.h"

enum kind { MEMORY, ARRAY, MIPMAPPED, TILES, HANDLE, MAPPING, EXPORT, ATTACHED, GREEN, SHARED_BLOCK };

#define BLOCK ((int64_t)2 << 20) /* the driver takes whole blocks of the card; smaller allocations share them */

/* Memory that counts while an entry of the table uses it. */
struct memory {
  struct device *device;
  int64_t bytes;
  int uses, imported;
  uint64_t block; /* the number of a block that several allocations share, by which it is in the table; 0: none */
};
struct pool {
  CUmemoryPool pool;     /* NULL: it was destroyed, and memory of it is still allocated */
  struct device *device; /* NULL: not of a card in the grant */
  int64_t counted;       /* what it has reserved, and not less than what is allocated of it */
  int64_t allocated;
  struct pool *next;
};
/* What a program has of the driver. */
struct entry {
  enum kind kind;
  uint64_t key;          /* TILES: the array. EXPORT: the file descriptor. ATTACHED, GREEN: the context */
  struct memory *memory; /* NULL: it does not count */
  struct pool *pool;     /* MEMORY: it is of this pool */
  int64_t bytes;         /* MEMORY of a pool, MAPPING */
  CUcontext context;     /* it ends with this; NULL: with none */
  int references;        /* HANDLE, ATTACHED: so many calls end it */
  CUarrayMapInfo *place; /* TILES */
  struct entry *next;
};

#define BUCKETS 4096
enum { WATCH_MS = 200 };
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER; /* whether a primary context is active changes with it held */
static pthread_mutex_t unsure = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *table[BUCKETS];
static struct pool *pools;
static int exports; /* entries of this kind */
static int watched; /* a thread watches the pools */

/* The table. All with `lock` held. */

static struct entry **slot(enum kind kind, uint64_t key) {
  struct entry **link = &table[(key >> 9 ^ key >> 21 ^ (uint64_t)kind) % BUCKETS];
  while (*link && ((*link)->kind != kind || (*link)->key != key)) link = &(*link)->next;
  return link;
}

static struct memory *use(struct memory *memory) {
  if (memory) memory->uses++;
  return memory;
}

static struct entry *unlink_entry(enum kind, uint64_t);

static void unuse(struct memory *memory) {
  if (!memory || --memory->uses) return;
  if (memory->block) free(unlink_entry(SHARED_BLOCK, memory->block));
  memory_sub(memory->device, memory->bytes);
  free(memory);
}

static void recount(struct pool *);

/* End entries that are not in the table any more. */
static void end_all(struct entry *list) {
  for (struct entry *entry = list; entry; entry = list) {
    list = entry->next;
    unuse(entry->memory);
    if (entry->pool) {
      entry->pool->allocated -= entry->bytes;
      recount(entry->pool);
    }
    exports -= entry->kind == EXPORT;
    free(entry->place);
    free(entry);
  }
}

static void link_all(struct entry *list) {
  for (struct entry *entry = list; entry; entry = list) {
    list = entry->next;
    struct entry **link = slot(entry->kind, entry->key);
    entry->next = *link;
    *link = entry;
  }
}

static struct entry *unlink_entry(enum kind kind, uint64_t key) {
  struct entry **link = slot(kind, key), *entry = *link;
  if (!entry) return NULL;
  *link = entry->next;
  entry->next = NULL;
  return entry;
}

/* Take those entries out of the table for which `matches` returns true. */
static struct entry *unlink_all(int (*matches)(const struct entry *, const void *), const void *what) {
  struct entry *list = NULL;
  for (int i = 0; i < BUCKETS; i++) {
    for (struct entry **link = &table[i], *entry; (entry = *link);) {
      if (!matches(entry, what)) {
        link = &entry->next;
        continue;
      }
      *link = entry->next;
      entry->next = list;
      list = entry;
    }
  }
  return list;
}

/* Add an entry, which takes over one use of the memory. If the driver gave the address of another entry again, that is gone. */
static struct entry *add(struct entry made) {
  struct entry *entry = malloc(sizeof *entry);
  if (!entry) return NULL; /* the memory counts until the process ends */
  *entry = made;
  if (entry->kind != TILES) end_all(unlink_entry(entry->kind, entry->key));
  exports += entry->kind == EXPORT;
  link_all(entry);
  return entry;
}

static struct memory *new_memory(struct device *device, int64_t bytes) {
  struct memory *memory = device ? malloc(sizeof *memory) : NULL;
  if (memory) *memory = (struct memory){device, bytes, 1, 0, 0};
  return memory;
}

/* An entry is out of the table before the driver frees its memory: from then on another thread may be given the same address. It
 * counts until then; NULL: not of a card in the grant, or not allocated here. */
static struct entry *take_out(enum kind kind, uint64_t key) {
  pthread_mutex_lock(&lock);
  struct entry *entry = unlink_entry(kind, key);
  pthread_mutex_unlock(&lock);
  return entry;
}

static CUresult ended(struct entry *list, CUresult result) {
  pthread_mutex_lock(&lock);
  if (result) link_all(list);
  else end_all(list);
  pthread_mutex_unlock(&lock);
  return result;
}

/* A child of fork has no memory of the card. */
static void after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  pthread_mutex_init(&unsure, NULL);
  pthread_mutex_init(&primary_lock, NULL);
  memset(table, 0, sizeof table);
  pools = NULL;
  exports = watched = 0;
}
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

/* What the driver gives back by itself */

/* Return the attribute, or what is to be taken for it where the driver does not say. */
static int64_t attribute(CUmemoryPool pool, CUmemPool_attribute which, int64_t otherwise) {
  CUstreamCaptureMode mode;
  uint64_t value = 0;
  int relaxed = relax(&mode);
  int64_t result = real.cuMemPoolGetAttribute(pool, which, &value) ? otherwise : (int64_t)value;
  if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
  return result;
}

/* Count what the pool has reserved now. What a destroyed one had reserved is given back when all that was allocated of it is
 * freed. With `lock` held. */
static void recount(struct pool *pool) {
  int64_t bytes = pool->pool ? attribute(pool->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, pool->counted) : pool->counted;
  if (!pool->pool && !pool->allocated) bytes = 0;
  if (bytes < pool->allocated) bytes = pool->allocated;
  if (!pool->device) return;
  if (bytes > pool->counted) memory_held(pool->device, bytes - pool->counted);
  else memory_sub(pool->device, pool->counted - bytes);
  pool->counted = bytes;
}

/* The file that a handle was exported to has a mark, because its number may be given again to another open file of the driver,
 * with the same inode. The mark is the signal that the file would send if it were asynchronous, which it is not (fcntl(2)). */
enum { EXPORTED = SIGURG };

static int is_closed(const struct entry *entry, const void *unused) {
  (void)unused;
  return entry->kind == EXPORT && fcntl((int)entry->key, F_GETSIG) != EXPORTED;
}
static void look_at_exports(void) {
  if (exports) end_all(unlink_all(is_closed, NULL));
}

/* Count anew what may have been given back without a call that is seen here: a pool gives back what it does not need when the
 * program synchronises, and a handle that was exported lives until its descriptor is closed. `trim`: have pools give back
 * what they keep, as the driver does before it refuses memory. With `lock` held. */
static void settle(int trim) {
  for (struct pool *one = pools; one; one = one->next) {
    CUstreamCaptureMode mode;
    if (!one->pool || !one->device) continue;
    if (trim && relax(&mode)) {
      real.cuMemPoolTrimTo(one->pool, 0);
      real.cuThreadExchangeStreamCaptureMode(&mode);
    }
    recount(one);
  }
  look_at_exports();
}

/* A pool gives back what was freed when the stream gets there, which no call shows. So pools that keep more than is allocated are
 * counted anew for as long as they do. */
static void *watch_pools(void *unused) {
  (void)unused;
  for (;;) {
    int keeps = 0;
    usleep(WATCH_MS * 1000);
    pthread_mutex_lock(&lock);
    for (struct pool *one = pools; one; one = one->next) keeps |= one->counted > one->allocated;
    if (keeps) settle(0);
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

/* Ask again for memory that was refused, if some was given back; return whether it is allowed. With `lock` held. */
static int add_after_settling(struct device *device, int64_t bytes) {
  int64_t before = atomic_load(&device->held_bytes);
  settle(1);
  return atomic_load(&device->held_bytes) < before && memory_add(device, bytes);
}

/* Memory that is gone when it is freed, or with its context */

static CUcontext context_of_thread(void) {
  CUcontext context = NULL;
  real.cuCtxGetCurrent(&context);
  return context;
}
static CUresult device_of_context(CUcontext context, CUdevice *ordinal) {
  CUcontext before = context_of_thread();
  if (context != before) real.cuCtxSetCurrent(context);
  CUresult result = real.cuCtxGetDevice(ordinal);
  if (context != before) real.cuCtxSetCurrent(before);
  return result;
}
/* Return the primary context; NULL if it is not active. */
static CUcontext primary_context(CUdevice ordinal) {
  CUstreamCaptureMode mode;
  CUcontext context = NULL;
  unsigned flags;
  int active = 0, relaxed = relax(&mode);
  real.cuDevicePrimaryCtxGetState(ordinal, &flags, &active);
  if (active && !real.cuDevicePrimaryCtxRetain(&context, ordinal)) real.cuDevicePrimaryCtxRelease_v2(ordinal);
  if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
  return context;
}

/* Return the context with which memory ends that the thread allocates: for a green one the primary. With `lock` held. */
static CUcontext context_of_memory(void) {
  CUcontext context = context_of_thread();
  CUdevice ordinal;
  return *slot(GREEN, (uint64_t)context) && !real.cuCtxGetDevice(&ordinal) ? primary_context(ordinal) : context;
}

static int begin_allocation(struct device *device, int64_t bytes) {
  if (bytes < 0) return 0;
  if (memory_add(device, bytes)) return 1;
  pthread_mutex_lock(&lock);
  int allowed = add_after_settling(device, bytes);
  pthread_mutex_unlock(&lock);
  return allowed;
}

static CUresult end_allocation(enum kind kind, CUresult result, uint64_t key, struct device *device, int64_t bytes) {
  if (result) {
    memory_sub(device, bytes);
    return result;
  }
  pthread_mutex_lock(&lock);
  add((struct entry){.kind = kind, .key = key, .memory = new_memory(device, bytes), .context = context_of_memory()});
  pthread_mutex_unlock(&lock);
  return result;
}

/* Return how much of the card an allocation of this size takes, in whole blocks. */
static int64_t whole_blocks(size_t size) {
  return size > INT64_MAX - BLOCK ? INT64_MAX : ((int64_t)size + BLOCK - 1) / BLOCK * BLOCK;
}

/* Use the block in which a small allocation is, if it counts already; else return NULL. With `lock` held. */
static struct memory *use_block(CUdeviceptr at) {
  struct entry *shared = *slot(SHARED_BLOCK, at / BLOCK);
  return shared ? use(shared->memory) : NULL;
}
static struct memory *new_block(struct device *device, CUdeviceptr at) {
  struct memory *memory = new_memory(device, BLOCK);
  if (memory && add((struct entry){.kind = SHARED_BLOCK, .key = at / BLOCK, .memory = memory})) memory->block = at / BLOCK;
  return memory;
}

/* Count an allocation before it is made; return the bytes that count for it, or -1 if it is refused. A small one takes a block only
 * if it does not fit into one that the process has, which is seen by its address: so it is made in any case. Where it does not
 * count (0), one is made at a time, with `unsure` held until end_memory. */
static int64_t begin_memory(struct device *device, size_t size) {
  int64_t bytes = whole_blocks(size ? size : 1);
  if (size >= BLOCK) return begin_allocation(device, bytes) ? bytes : -1;
  if (memory_add(device, bytes)) return bytes;
  pthread_mutex_lock(&unsure);
  return 0;
}

static CUresult end_memory(struct device *device, size_t size, int64_t counted, CUresult result, const CUdeviceptr *at) {
  int64_t bytes = whole_blocks(size); /* rows may be longer than expected */
  if (result) {
    memory_sub(device, counted);
    if (!counted) pthread_mutex_unlock(&unsure);
    return result;
  }
  pthread_mutex_lock(&lock);
  struct memory *memory = size < BLOCK ? use_block(*at) : NULL;
  if (memory) {
    memory_sub(device, counted);
  } else if (counted || add_after_settling(device, bytes)) {
    if (counted && counted < bytes) memory_held(device, bytes - counted);
    memory = size < BLOCK ? new_block(device, *at) : new_memory(device, bytes);
  }
  if (memory) add((struct entry){.kind = MEMORY, .key = *at, .memory = memory, .context = context_of_memory()});
  pthread_mutex_unlock(&lock);
  if (!memory) {
    if (real.cuMemFree_v2(*at)) memory_held(device, bytes);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!counted) pthread_mutex_unlock(&unsure);
  return result;
}

#define ALLOCATE_MEMORY(size, call, out, actual) \
  struct device *device = device_of_thread(); \
  if (!device) return call; \
  int64_t counted = begin_memory(device, size); \
  if (counted < 0) return CUDA_ERROR_OUT_OF_MEMORY; \
  CUresult result = call; \
  return end_memory(device, result ? 0 : (actual), counted, result, out)

/* An array: how a small one shares blocks is not known, and nothing shows it: what it takes besides is in the driver's readings. */
#define ALLOCATE_ARRAY(kind, size, call, out) \
  struct device *device = device_of_thread(); \
  int64_t bytes = size < BLOCK ? (int64_t)size : whole_blocks(size); \
  if (!device) return call; \
  if (!begin_allocation(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY; \
  CUresult result = call; \
  return end_allocation(kind, result, result ? 0 : (uint64_t)*out, device, bytes)

#define FREE(kind, key, call) \
  struct entry *entry = take_out(kind, (uint64_t)(key)); \
  return ended(entry, call)

HOOK CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
  ALLOCATE_MEMORY(size, real.cuMemAlloc_v2(out, size), out, size);
}
HOOK CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags) {
  ALLOCATE_MEMORY(size, real.cuMemAllocManaged(out, size, flags), out, size); /* in full, though it may be paged out */
}
static size_t rows_of_512(size_t width, size_t height) {
  size_t pitch = (width + 511) & ~(size_t)511, all;
  return __builtin_mul_overflow(pitch, height, &all) ? (size_t)INT64_MAX : all;
}
HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  ALLOCATE_MEMORY(rows_of_512(width, height), real.cuMemAllocPitch_v2(out, pitch, width, height, element), out,
                  *pitch * height);
}
/* Memory of pools may be freed in this way too. */
HOOK CUresult cuMemFree_v2(CUdeviceptr at) {
  FREE(MEMORY, at, real.cuMemFree_v2(at));
}

/* Arrays */

static size_t bytes_of_format(int format) {
  switch (format) { /* CUarray_format */
    case 0x02: case 0x09: case 0x10: return 2;
    case 0x03: case 0x0a: case 0x20: return 4;
    case 0x01: case 0x08: return 1;
    default: return 16; /* packed and compressed ones: never less than they take */
  }
}
static size_t volume(size_t width, size_t height, size_t depth, unsigned channels, int format) {
  size_t all = bytes_of_format(format) * (channels ? channels : 1);
  int over = __builtin_mul_overflow(all, width, &all);
  over |= __builtin_mul_overflow(all, height ? height : 1, &all);
  over |= __builtin_mul_overflow(all, depth ? depth : 1, &all);
  return over ? (size_t)INT64_MAX : all;
}
/* An array that is sparse, or mapped later, has no memory but that of cuMemCreate which is mapped into it. */
static size_t volume_of(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
  return volume(d->Width, d->Height, d->Depth, d->NumChannels, d->Format);
}
HOOK CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  size_t size = volume(d->Width, d->Height, 1, d->NumChannels, d->Format);
  ALLOCATE_ARRAY(ARRAY, size, real.cuArrayCreate_v2(out, d), out);
}
HOOK CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  size_t size = volume_of(d);
  ALLOCATE_ARRAY(ARRAY, size, real.cuArray3DCreate_v2(out, d), out);
}
HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  size_t size = volume_of(d);
  if (levels > 1 && size < INT64_MAX / 2) size *= 2; /* all further levels together are less than the first */
  ALLOCATE_ARRAY(MIPMAPPED, size, real.cuMipmappedArrayCreate(out, d, levels), out);
}

static int is_tile_of(const struct entry *entry, const void *array) {
  return entry->kind == TILES && entry->key == *(const uint64_t *)array;
}
/* Take an array out of the table, with what is mapped into it. */
static struct entry *take_out_array(enum kind kind, uint64_t key) {
  pthread_mutex_lock(&lock);
  struct entry *entry = unlink_entry(kind, key);
  if (entry && (!entry->memory || !entry->memory->bytes)) entry->next = unlink_all(is_tile_of, &key);
  pthread_mutex_unlock(&lock);
  return entry;
}
HOOK CUresult cuArrayDestroy(CUarray array) {
  struct entry *list = take_out_array(ARRAY, (uint64_t)array);
  return ended(list, real.cuArrayDestroy(array));
}
HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  struct entry *list = take_out_array(MIPMAPPED, (uint64_t)array);
  return ended(list, real.cuMipmappedArrayDestroy(array));
}

/* Pools: what they have reserved counts, which is more than what programs have of them */

/* Find out of which card memory of this kind is: NULL for memory of the host, and of a card that is not in the grant. Returns
 * whether that can be told. */
static int locate(const CUmemLocation *location, int type, struct device **device) {
  *device = NULL;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    *device = device_by_ordinal(location->id);
  } else if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) { /* the thread's card may have all of it, as with cuMemAllocManaged */
    *device = device_of_thread();
    if (!*device && link_devices()) *device = link_device(0);
  }
  return location->type >= 0 && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

/* Return what is known of a pool; NULL if there is no memory for that. With `lock` held. */
static struct pool *pool_of(CUmemoryPool pool, struct device *device) {
  for (struct pool *one = pools; one; one = one->next) {
    if (one->pool == pool) return one;
  }
  struct pool *one = calloc(1, sizeof *one);
  if (one) {
    *one = (struct pool){.pool = pool, .device = device, .next = pools};
    pools = one;
    if (!watched) watched = start_thread(watch_pools);
  }
  return one;
}

/* Forget the destroyed pools of which no memory is left. With `lock` held. */
static void drop_pools(void) {
  for (struct pool **link = &pools, *one; (one = *link);) {
    if (one->pool || one->allocated) {
      link = &one->next;
      continue;
    }
    *link = one->next;
    free(one);
  }
}

/* Remember where a pool is that the driver has returned. */
static CUresult returned(CUresult result, const CUmemoryPool *pool, struct device *device) {
  if (result) return result;
  pthread_mutex_lock(&lock);
  pool_of(*pool, device);
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties) {
  struct device *device = NULL;
  if (properties && !locate(&properties->location, properties->allocType, &device)) return CUDA_ERROR_NOT_SUPPORTED;
  return returned(real.cuMemPoolCreate(out, properties), out, device);
}
HOOK CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal) {
  return returned(real.cuDeviceGetDefaultMemPool(out, ordinal), out, device_by_ordinal(ordinal));
}
HOOK CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal) {
  return returned(real.cuDeviceGetMemPool(out, ordinal), out, device_by_ordinal(ordinal));
}
#define POOL_OF_LOCATION(name) \
  struct device *device = NULL; \
  if (location && !locate(location, type, &device)) return CUDA_ERROR_NOT_SUPPORTED; \
  return returned(real.name(out, location, type), out, device)
HOOK CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
  POOL_OF_LOCATION(cuMemGetDefaultMemPool);
}
HOOK CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
  POOL_OF_LOCATION(cuMemGetMemPool);
}

static int64_t missing(struct pool *pool, int64_t size) {
  int64_t used = attribute(pool->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool->counted);
  int64_t more = used + size - attribute(pool->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0);
  return more > 0 ? whole_blocks((size_t)more) : 0;
}

/* Return the pool from which a stream allocates: the one that is current to its device. */
static CUmemoryPool pool_of_stream(CUstream stream, struct device **device) {
  CUcontext context = context_of_thread();
  CUmemoryPool pool = NULL;
  CUstreamCaptureMode mode;
  CUdevice ordinal;
  int relaxed = relax(&mode);
  if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) real.cuStreamGetCtx(stream, &context);
  if (device_of_context(context, &ordinal) || real.cuDeviceGetMemPool(&pool, ordinal)) pool = NULL;
  else *device = device_by_ordinal(ordinal);
  if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
  return pool;
}

typedef CUresult (*FromPool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

static CUresult from_pool(CUdeviceptr *out, size_t size, CUmemoryPool handle, CUstream stream, FromPool allocate,
                          int captured) {
  struct device *device = device_of_thread();
  if (captured) { /* it becomes a node of a graph: see below */
    return !device || informs(device) ? allocate(out, size, handle, stream) : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!handle) handle = pool_of_stream(stream, &device);
  if (!handle) return allocate(out, size, handle, stream); /* the driver says what is wrong */
  pthread_mutex_lock(&lock);
  struct pool *pool = pool_of(handle, device);
  if (!pool || !pool->device) {
    pthread_mutex_unlock(&lock);
    return pool ? allocate(out, size, handle, stream) : CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  int64_t bytes = size > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)size;
  recount(pool);
  int64_t more = missing(pool, bytes);
  int allowed = !more || memory_add(pool->device, more);
  if (!allowed) { /* what was freed into the pools may be enough elsewhere */
    settle(1);
    more = missing(pool, bytes);
    allowed = memory_add(pool->device, more);
  }
  if (allowed) {
    pool->counted += more;
    result = allocate(out, size, handle, stream);
    if (!result && add((struct entry){.kind = MEMORY, .key = *out, .pool = pool, .bytes = bytes})) pool->allocated += bytes;
    recount(pool);
  }
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  if (!pool) return real.cuMemAllocFromPoolAsync(out, size, pool, stream);
  return from_pool(out, size, pool, stream, real.cuMemAllocFromPoolAsync, is_captured(stream));
}
HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  if (!pool) return real.cuMemAllocFromPoolAsync_ptsz(out, size, pool, stream);
  return from_pool(out, size, pool, stream, real.cuMemAllocFromPoolAsync_ptsz, is_captured_ptsz(stream));
}
static CUresult current_pool(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  (void)pool;
  return real.cuMemAllocAsync(out, size, stream);
}
static CUresult current_pool_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  (void)pool;
  return real.cuMemAllocAsync_ptsz(out, size, stream);
}
HOOK CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream) {
  return from_pool(out, size, NULL, stream, current_pool, is_captured(stream));
}
HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream) {
  return from_pool(out, size, NULL, stream, current_pool_ptsz, is_captured_ptsz(stream));
}
/* Memory of cuMemAlloc may be freed in this way too. */
HOOK CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
  FREE(MEMORY, at, real.cuMemFreeAsync(at, stream));
}
HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream) {
  FREE(MEMORY, at, real.cuMemFreeAsync_ptsz(at, stream));
}
HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  CUresult result = real.cuMemPoolTrimTo(pool, keep);
  pthread_mutex_lock(&lock);
  settle(0);
  pthread_mutex_unlock(&lock);
  return result;
}
/* With `lock` held for the time of the call: a pool that is destroyed cannot be asked for what it has. */
HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  pthread_mutex_lock(&lock);
  CUresult result = real.cuMemPoolDestroy(handle);
  for (struct pool *one = pools; one && !result; one = one->next) {
    if (one->pool != handle) continue;
    one->pool = NULL;
    recount(one);
  }
  drop_pools();
  pthread_mutex_unlock(&lock);
  return result;
}

/* Virtual memory: a handle, mappings of it, and the descriptors that it is exported to */

HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                          unsigned long long flags) {
  struct device *device = NULL;
  if (properties && !locate(&properties->location, properties->type, &device)) return CUDA_ERROR_NOT_SUPPORTED;
  if (!device) return real.cuMemCreate(out, size, properties, flags);
  if (size > INT64_MAX || !begin_allocation(device, (int64_t)size)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = real.cuMemCreate(out, size, properties, flags);
  if (result) {
    memory_sub(device, (int64_t)size);
    return result;
  }
  pthread_mutex_lock(&lock);
  add((struct entry){.kind = HANDLE, .key = *out, .memory = new_memory(device, (int64_t)size), .references = 1});
  pthread_mutex_unlock(&lock);
  return result;
}

/* Count one more handle: the driver may return the same one again. Takes over one use of the memory. With `lock` held. */
static void add_handle(uint64_t handle, struct memory *memory) {
  struct entry *entry = *slot(HANDLE, handle);
  if (!entry) {
    add((struct entry){.kind = HANDLE, .key = handle, .memory = memory, .references = 1});
    return;
  }
  entry->references++;
  unuse(memory);
}

HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  pthread_mutex_lock(&lock);
  struct entry *entry = *slot(HANDLE, handle);
  struct entry *last = entry && !--entry->references ? unlink_entry(HANDLE, handle) : NULL;
  pthread_mutex_unlock(&lock);
  CUresult result = real.cuMemRelease(handle);
  pthread_mutex_lock(&lock);
  if (result) {
    link_all(last);
    if (entry && (entry = *slot(HANDLE, handle))) entry->references++;
  } else {
    end_all(last);
    look_at_exports();
  }
  pthread_mutex_unlock(&lock);
  return result;
}

struct range {
  uint64_t at, size;
};
static int is_mapped_at(const struct entry *entry, const void *what) {
  uint64_t at = *(const uint64_t *)what;
  return entry->kind == MAPPING && entry->key <= at && at - entry->key < (uint64_t)entry->bytes;
}
static int is_mapped_in(const struct entry *entry, const void *what) {
  const struct range *range = what;
  return entry->kind == MAPPING && entry->key >= range->at && entry->key - range->at < range->size;
}

/* The handle of an address, which has to be released once more. The address may be anywhere in a mapping. */
HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
  uint64_t at = (uint64_t)address;
  CUresult result = real.cuMemRetainAllocationHandle(out, address);
  if (result) return result;
  pthread_mutex_lock(&lock);
  struct entry *mapping = unlink_all(is_mapped_at, &at);
  if (mapping && mapping->memory) add_handle(*out, use(mapping->memory));
  link_all(mapping);
  pthread_mutex_unlock(&lock);
  return result;
}

/* Use so many bytes of a handle's memory; return whether that is allowed. How much memory there is of what another process has
 * exported is seen from its mapping only: it counts from then on. With `lock` held. */
static int use_handle(uint64_t handle, size_t size, struct memory **memory) {
  struct entry *entry = *slot(HANDLE, handle);
  *memory = entry ? use(entry->memory) : NULL;
  int64_t more = *memory && (*memory)->imported && size < INT64_MAX ? (int64_t)size - (*memory)->bytes : 0;
  if (more <= 0) return 1;
  int allowed = memory_add((*memory)->device, more) || add_after_settling((*memory)->device, more);
  if (allowed) (*memory)->bytes += more;
  else unuse(*memory);
  return allowed;
}

HOOK CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
  struct memory *memory;
  pthread_mutex_lock(&lock);
  int allowed = use_handle(handle, size, &memory); /* before the call: another thread may release the handle after it */
  pthread_mutex_unlock(&lock);
  if (!allowed) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = real.cuMemMap(at, size, offset, handle, flags);
  pthread_mutex_lock(&lock);
  if (result) unuse(memory);
  else add((struct entry){.kind = MAPPING, .key = at, .memory = memory, .bytes = (int64_t)size});
  pthread_mutex_unlock(&lock);
  return result;
}

/* A range may have several mappings. */
HOOK CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  struct range range = {at, size};
  pthread_mutex_lock(&lock);
  struct entry *list = unlink_all(is_mapped_in, &range);
  pthread_mutex_unlock(&lock);
  return ended(list, real.cuMemUnmap(at, size));
}

HOOK CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags) {
  CUresult result = real.cuMemExportToShareableHandle(out, handle, type, flags);
  if (result || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return result; /* no other keeps the memory */
  int descriptor = *(int *)out;
  pthread_mutex_lock(&lock);
  struct entry *entry = *slot(HANDLE, handle);
  if (entry && !fcntl(descriptor, F_SETSIG, EXPORTED)) {
    add((struct entry){.kind = EXPORT, .key = (uint64_t)descriptor, .memory = use(entry->memory)});
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* Memory of another process counts here too, from its first mapping on: that process may have released it. */
static struct memory *new_imported(CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp properties;
  struct device *device;
  if (real.cuMemGetAllocationPropertiesFromHandle(&properties, handle)) return NULL; /* not memory: a multicast object */
  if (!locate(&properties.location, properties.type, &device)) device = device_of_thread();
  struct memory *memory = new_memory(device, 0);
  if (memory) memory->imported = 1;
  return memory;
}

HOOK CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle, int type) {
  uint64_t descriptor = (uint64_t)(intptr_t)handle;
  pthread_mutex_lock(&lock);
  struct entry *entry = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? *slot(EXPORT, descriptor) : NULL;
  struct memory *memory = entry && !is_closed(entry, NULL) ? use(entry->memory) : NULL;
  pthread_mutex_unlock(&lock);
  CUresult result = real.cuMemImportFromShareableHandle(out, handle, type);
  pthread_mutex_lock(&lock);
  if (result) unuse(memory);
  else if (memory || (memory = new_imported(*out))) add_handle(*out, memory);
  pthread_mutex_unlock(&lock);
  return result;
}

/* Memory that is mapped into an array uses the handle until that place of the array is unmapped, or the array is gone. */

static int is_same_place(const CUarrayMapInfo *a, const CUarrayMapInfo *b) {
  return a->subresourceType == b->subresourceType && !memcmp(&a->subresource, &b->subresource, sizeof a->subresource);
}
static int is_tile_at(const struct entry *entry, const void *what) {
  const CUarrayMapInfo *place = what;
  return entry->kind == TILES && entry->key == (uint64_t)place->resource && is_same_place(entry->place, place);
}
static CUcontext context_of_array(uint64_t array) {
  struct entry *entry = *slot(ARRAY, array);
  if (!entry) entry = *slot(MIPMAPPED, array);
  return entry ? entry->context : context_of_memory();
}

/* Return an entry for what is to be mapped, which is not in the table; NULL if it does not count. With `lock` held. */
static struct entry *new_tile(const CUarrayMapInfo *place) {
  struct entry *handle = place->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? *slot(HANDLE, place->memHandle) : NULL;
  struct entry *entry = handle ? malloc(sizeof *entry) : NULL;
  CUarrayMapInfo *copy = entry ? malloc(sizeof *copy) : NULL;
  uint64_t array = (uint64_t)place->resource;
  if (copy) {
    *copy = *place;
    *entry = (struct entry){.kind = TILES, .key = array, .memory = use(handle->memory), .place = copy};
    entry->context = context_of_array(array);
    return entry;
  }
  free(entry);
  return NULL;
}

static CUresult map_array(CUarrayMapInfo *list, unsigned number, CUstream stream,
                          CUresult (*call)(CUarrayMapInfo *, unsigned, CUstream)) {
  struct entry *made = NULL, **last = &made;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; list && i < number; i++) { /* before the call: another thread may release the handle after it */
    if ((*last = new_tile(&list[i]))) last = &(*last)->next;
  }
  pthread_mutex_unlock(&lock);
  CUresult result = call(list, number, stream);
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < number && !result; i++) {
    struct entry *one = made;
    end_all(unlink_all(is_tile_at, &list[i]));
    if (!one || memcmp(one->place, &list[i], sizeof list[i])) continue;
    made = one->next;
    one->next = NULL;
    link_all(one);
  }
  end_all(made);
  pthread_mutex_unlock(&lock);
  return result;
}
HOOK CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned number, CUstream stream) {
  return map_array(list, number, stream, real.cuMemMapArrayAsync);
}
HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned number, CUstream stream) {
  return map_array(list, number, stream, real.cuMemMapArrayAsync_ptsz);
}

/* What cannot be counted, and is refused where the card is shared and its driver does not limit memory: memory of graphs, which is
 * allocated when a graph is launched and kept for the next launch; and calls of the first version of the API (CUDA 3.1 and older). */

static int must_count(void) {
  struct device *device = device_of_thread();
  return device && !informs(device);
}

#define REFUSE(call) return must_count() ? CUDA_ERROR_NOT_SUPPORTED : (call)

HOOK CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, void *params) {
  REFUSE(real.cuGraphAddMemAllocNode(node, graph, after, count, params));
}
static int allocates(const CUgraphNodeParams *params) { return params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
HOOK CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *p) {
  if (allocates(p)) REFUSE(real.cuGraphAddNode(node, graph, after, count, p));
  return real.cuGraphAddNode(node, graph, after, count, p);
}
HOOK CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                                CUgraphNodeParams *p) {
  if (allocates(p)) REFUSE(real.cuGraphAddNode_v2(node, graph, after, edges, count, p));
  return real.cuGraphAddNode_v2(node, graph, after, edges, count, p);
}
HOOK CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                                CUgraphNodeParams *p) {
  if (allocates(p)) REFUSE(real.cuGraphAddNode_v3(node, graph, after, edges, count, p));
  return real.cuGraphAddNode_v3(node, graph, after, edges, count, p);
}
HOOK CUresult cuMemAlloc(unsigned *out, unsigned size) { REFUSE(real.cuMemAlloc(out, size)); }
HOOK CUresult cuMemAllocPitch(unsigned *out, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
  REFUSE(real.cuMemAllocPitch(out, pitch, width, height, element));
}
HOOK CUresult cuArrayCreate(CUarray *out, const void *descriptor) { REFUSE(real.cuArrayCreate(out, descriptor)); }
HOOK CUresult cuArray3DCreate(CUarray *out, const void *descriptor) { REFUSE(real.cuArray3DCreate(out, descriptor)); }

/* Queries. The driver takes NULL for an output that is not wanted. */

HOOK CUresult cuMemGetInfo_v2(size_t *left, size_t *all) {
  CUresult result = real.cuMemGetInfo_v2(left, all);
  struct device *device = result ? NULL : device_of_thread();
  if (device) {
    pthread_mutex_lock(&lock);
    settle(0);
    pthread_mutex_unlock(&lock);
    int64_t unused = memory_left(device), limit = atomic_load(&device->page)->limit_bytes;
    if (left && (int64_t)*left > unused) *left = (size_t)unused; /* what others take beyond their shares is not there either */
    if (all && (int64_t)*all > limit) *all = (size_t)limit;
  }
  return result;
}

HOOK CUresult cuDeviceTotalMem_v2(size_t *all, CUdevice ordinal) {
  CUresult result = real.cuDeviceTotalMem_v2(all, ordinal);
  struct device *device = result || !all ? NULL : device_by_ordinal(ordinal);
  if (device && (int64_t)*all > atomic_load(&device->page)->limit_bytes) *all = (size_t)atomic_load(&device->page)->limit_bytes;
  return result;
}

/* Contexts: each has memory of its own, which counts from before it is made */

#define CREATE_CONTEXT(call) \
  struct device *device = device_by_ordinal(ordinal); \
  if (!device) return call; \
  if (!context_begin(device)) return CUDA_ERROR_OUT_OF_MEMORY; \
  CUresult result = call; \
  if (result) context_end(device); \
  return result

HOOK CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal) {
  CREATE_CONTEXT(real.cuCtxCreate_v2(out, flags, ordinal));
}
HOOK CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice ordinal) {
  CREATE_CONTEXT(real.cuCtxCreate(out, flags, ordinal));
}
HOOK CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int number, unsigned flags, CUdevice ordinal) {
  CREATE_CONTEXT(real.cuCtxCreate_v3(out, affinity, number, flags, ordinal));
}
HOOK CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice ordinal) {
  CREATE_CONTEXT(real.cuCtxCreate_v4(out, params, flags, ordinal));
}

/* Make a call that retains the primary context, which is made if it is not active. */
#define RETAIN_PRIMARY(call) \
  struct device *device = device_by_ordinal(ordinal); \
  if (!device) return call; \
  pthread_mutex_lock(&primary_lock); \
  int begins = !primary_context(ordinal), allowed = !begins || context_begin(device); \
  CUresult result = allowed ? call : CUDA_ERROR_OUT_OF_MEMORY; \
  if (begins && allowed && result) context_end(device); \
  pthread_mutex_unlock(&primary_lock); \
  return result

HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal) {
  RETAIN_PRIMARY(real.cuDevicePrimaryCtxRetain(out, ordinal));
}
/* A green context has a reference to the primary one until it is destroyed. */
HOOK CUresult cuGreenCtxCreate(CUgreenCtx *out, const void *resources, CUdevice ordinal, unsigned flags) {
  RETAIN_PRIMARY(real.cuGreenCtxCreate(out, resources, ordinal, flags));
}

static int ends_with(const struct entry *entry, const void *context) { return entry->context && entry->context == context; }

/* Take out of the table what ends with a context, as what is freed. */
static struct entry *take_out_context(CUcontext context) {
  pthread_mutex_lock(&lock);
  struct entry *list = unlink_all(ends_with, context);
  pthread_mutex_unlock(&lock);
  return list;
}
/* `device`: of the context; NULL if it is not in the grant, or not a context. */
static CUresult context_ended(CUcontext context, struct device *device, struct entry *list, CUresult result) {
  if (!result) {
    forget_launch_context(context);
    if (device) context_end(device);
  }
  return ended(list, result);
}
static struct device *device_of(CUcontext context) {
  CUdevice ordinal;
  return context && !device_of_context(context, &ordinal) ? device_by_ordinal(ordinal) : NULL;
}

HOOK CUresult cuCtxDestroy_v2(CUcontext context) {
  struct device *device = device_of(context);
  struct entry *list = take_out_context(context);
  return context_ended(context, device, list, real.cuCtxDestroy_v2(context));
}
HOOK CUresult cuCtxDestroy(CUcontext context) {
  struct device *device = device_of(context);
  struct entry *list = take_out_context(context);
  return context_ended(context, device, list, real.cuCtxDestroy(context));
}

HOOK CUresult cuCtxAttach(CUcontext *out, unsigned flags) {
  CUresult result = real.cuCtxAttach(out, flags);
  if (result) return result;
  pthread_mutex_lock(&lock);
  struct entry *entry = *slot(ATTACHED, (uint64_t)*out);
  if (entry) entry->references++;
  else add((struct entry){.kind = ATTACHED, .key = (uint64_t)*out, .references = 1, .context = *out});
  pthread_mutex_unlock(&lock);
  return result;
}
/* The one that is for cuCtxCreate destroys it: the last. */
HOOK CUresult cuCtxDetach(CUcontext context) {
  pthread_mutex_lock(&lock);
  struct entry *entry = *slot(ATTACHED, (uint64_t)context);
  int is_last = !entry || !entry->references;
  struct entry *list = is_last ? unlink_all(ends_with, context) : NULL;
  if (!is_last) entry->references--;
  pthread_mutex_unlock(&lock);
  struct device *device = is_last ? device_of(context) : NULL;
  CUresult result = real.cuCtxDetach(context);
  if (is_last) return context_ended(context, device, list, result);
  pthread_mutex_lock(&lock);
  if (result && (entry = *slot(ATTACHED, (uint64_t)context))) entry->references++;
  pthread_mutex_unlock(&lock);
  return result;
}

static CUresult reset(CUdevice ordinal, CUresult (*call)(CUdevice)) {
  pthread_mutex_lock(&primary_lock);
  CUcontext context = primary_context(ordinal);
  struct entry *list = take_out_context(context);
  CUresult result = call(ordinal);
  int is_gone = context && !primary_context(ordinal);
  result = context_ended(context, is_gone ? device_by_ordinal(ordinal) : NULL, list, result);
  pthread_mutex_unlock(&primary_lock);
  return result;
}
/* The release of the last reference resets the context. Whether it was the last is seen after it only, so `lock` is held for
 * the time of the call: no other thread allocates in the next primary context meanwhile. */
static CUresult released(CUdevice ordinal, CUcontext context, CUresult result) {
  int is_last = !result && context && !primary_context(ordinal);
  struct entry *list = is_last ? unlink_all(ends_with, context) : NULL;
  pthread_mutex_unlock(&lock);
  if (is_last) result = context_ended(context, device_by_ordinal(ordinal), list, result);
  pthread_mutex_unlock(&primary_lock);
  return result;
}
static CUresult release(CUdevice ordinal, CUresult (*call)(CUdevice)) {
  pthread_mutex_lock(&primary_lock);
  pthread_mutex_lock(&lock);
  CUcontext context = primary_context(ordinal);
  return released(ordinal, context, call(ordinal));
}
HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) { return reset(ordinal, real.cuDevicePrimaryCtxReset_v2); }
HOOK CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) { return reset(ordinal, real.cuDevicePrimaryCtxReset); }
HOOK CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) { return release(ordinal, real.cuDevicePrimaryCtxRelease_v2); }
HOOK CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) { return release(ordinal, real.cuDevicePrimaryCtxRelease); }

HOOK CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green) {
  CUresult result = real.cuCtxFromGreenCtx(out, green);
  if (result) return result;
  pthread_mutex_lock(&lock);
  add((struct entry){.kind = GREEN, .key = (uint64_t)*out});
  pthread_mutex_unlock(&lock);
  return result;
}
HOOK CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  CUcontext own;
  CUdevice ordinal;
  if (real.cuCtxFromGreenCtx(&own, green) || device_of_context(own, &ordinal)) return real.cuGreenCtxDestroy(green);
  pthread_mutex_lock(&primary_lock);
  pthread_mutex_lock(&lock);
  CUcontext context = primary_context(ordinal);
  CUresult result = real.cuGreenCtxDestroy(green);
  if (!result) {
    free(unlink_entry(GREEN, (uint64_t)own));
    forget_launch_context(own);
  }
  return released(ordinal, context, result);
}
