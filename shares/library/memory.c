/* Allocations: none beyond the container's share, and queries that return the share.
 *
 * An amount counts before the real call, so that two processes cannot both take the last bytes, and until the memory is really
 * given back: a pool keeps what was freed into it; memory of cuMemCreate lives until its handle and its last mapping are gone.
 * What no call shows, such as a context's own memory, is not counted here. */
#include <stdlib.h>
#include <string.h>

#include "compute.h"
#include "driver.h"

enum kind { MEMORY, ARRAY, MIPMAPPED, HANDLE, MAPPING };

struct entry {
  enum kind kind;
  uint64_t key;
  int64_t bytes;
  struct device *device;
  CUcontext context;
  uint64_t handle;   /* MAPPING */
  int references, mappings; /* HANDLE */
  struct entry *next;
};
struct pool {
  CUmemoryPool pool;
  struct device *device;
  int64_t counted; /* of what it has reserved */
  struct pool *next;
};

#define BUCKETS 4096
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *table[BUCKETS];
static struct pool *pools;

static struct entry **slot(enum kind kind, uint64_t key) {
  struct entry **link = &table[(key >> 9 ^ key >> 21 ^ (uint64_t)kind) % BUCKETS];
  while (*link && ((*link)->kind != kind || (*link)->key != key)) link = &(*link)->next;
  return link;
}

static struct entry *remember(enum kind kind, uint64_t key, int64_t bytes, struct device *device) {
  struct entry *entry = calloc(1, sizeof *entry);
  if (!entry) return NULL;
  *entry = (struct entry){.kind = kind, .key = key, .bytes = bytes, .device = device, .references = 1};
  real.cuCtxGetCurrent(&entry->context);
  pthread_mutex_lock(&lock);
  struct entry **link = slot(kind, key);
  if (*link) { /* the driver gave the address again: the old one is gone */
    memory_sub((*link)->device, (*link)->bytes);
    entry->next = (*link)->next;
    free(*link);
  }
  *link = entry;
  pthread_mutex_unlock(&lock);
  return entry;
}

/* Take an entry out of the table; with `lock` held. */
static struct entry *unlink_entry(enum kind kind, uint64_t key) {
  struct entry **link = slot(kind, key), *entry = *link;
  if (entry) *link = entry->next;
  return entry;
}

/* Put an entry back; with `lock` held. */
static void link_entry(struct entry *entry) {
  struct entry **link = slot(entry->kind, entry->key);
  entry->next = *link;
  *link = entry;
}

/* An entry is out of the table before the driver frees its memory: from then on another thread may be given the same address. It
 * counts until then; NULL: not of a card in the grant, or not allocated here. */
static struct entry *take_out(enum kind kind, uint64_t key) {
  pthread_mutex_lock(&lock);
  struct entry *entry = unlink_entry(kind, key);
  pthread_mutex_unlock(&lock);
  return entry;
}

static CUresult ended(struct entry *entry, CUresult result) {
  if (entry && result) {
    pthread_mutex_lock(&lock);
    link_entry(entry);
    pthread_mutex_unlock(&lock);
  } else if (entry) {
    memory_sub(entry->device, entry->bytes);
    free(entry);
  }
  return result;
}

#define FREE(kind, key, call) \
  struct entry *entry = take_out(kind, (uint64_t)(key)); \
  return ended(entry, call)

static void forget_allocations(CUcontext context) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < BUCKETS; i++) {
    for (struct entry **link = &table[i]; *link;) {
      struct entry *entry = *link;
      if (entry->context != context) {
        link = &entry->next;
        continue;
      }
      *link = entry->next;
      if (entry->kind != MAPPING) memory_sub(entry->device, entry->bytes);
      free(entry);
    }
  }
  pthread_mutex_unlock(&lock);
}

/* A child of fork has no memory of the card. */
static void after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  memset(table, 0, sizeof table);
  pools = NULL;
}
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

/* Memory that is gone when it is freed */

#define ALLOCATE(kind, size, call, key, actual) \
  struct device *device = device_of_thread(); \
  int64_t bytes = (int64_t)(size); \
  if (!device) return call; \
  if (bytes < 0 || !memory_add(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY; \
  CUresult result = call; \
  int64_t really = result ? 0 : (int64_t)(actual); \
  if (really > bytes) memory_held(device, really - bytes); \
  else memory_sub(device, bytes - really); \
  if (!result) remember(kind, (uint64_t)(key), really, device); \
  return result

HOOK CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
  ALLOCATE(MEMORY, size, real.cuMemAlloc_v2(out, size), *out, size);
}
HOOK CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags) {
  ALLOCATE(MEMORY, size, real.cuMemAllocManaged(out, size, flags), *out, size); /* in full, though it may be paged out */
}
static size_t rows_of_512(size_t width, size_t height) {
  size_t pitch = (width + 511) & ~(size_t)511, all;
  return __builtin_mul_overflow(pitch, height, &all) ? (size_t)INT64_MAX : all;
}
HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  ALLOCATE(MEMORY, rows_of_512(width, height), real.cuMemAllocPitch_v2(out, pitch, width, height, element), *out,
           *pitch * height);
}
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
HOOK CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  size_t size = volume(d->Width, d->Height, 1, d->NumChannels, d->Format);
  ALLOCATE(ARRAY, size, real.cuArrayCreate_v2(out, d), *out, size);
}
HOOK CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  size_t size = volume(d->Width, d->Height, d->Depth, d->NumChannels, d->Format);
  ALLOCATE(ARRAY, size, real.cuArray3DCreate_v2(out, d), *out, size);
}
HOOK CUresult cuArrayDestroy(CUarray array) {
  FREE(ARRAY, array, real.cuArrayDestroy(array));
}
HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  size_t size = volume(d->Width, d->Height, d->Depth, d->NumChannels, d->Format);
  if (levels > 1 && size < INT64_MAX / 2) size *= 2; /* all further levels together are less than the first */
  ALLOCATE(MIPMAPPED, size, real.cuMipmappedArrayCreate(out, d, levels), *out, size);
}
HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  FREE(MIPMAPPED, array, real.cuMipmappedArrayDestroy(array));
}

/* Pools: what they have reserved counts, which is more than what programs have of them */

static struct pool *pool_of(CUmemoryPool pool, struct device *device) {
  for (struct pool *one = pools; one; one = one->next) {
    if (one->pool == pool) return one;
  }
  struct pool *one = calloc(1, sizeof *one);
  if (one) {
    *one = (struct pool){.pool = pool, .device = device, .next = pools};
    pools = one;
  }
  return one;
}

static int64_t attribute(CUmemoryPool pool, CUmemPool_attribute which) {
  uint64_t value = 0;
  real.cuMemPoolGetAttribute(pool, which, &value);
  return (int64_t)value;
}

/* Count what the pool has reserved now; with `lock` held. */
static void recount(struct pool *pool) {
  int64_t reserved = attribute(pool->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  if (reserved > pool->counted) memory_held(pool->device, reserved - pool->counted);
  else memory_sub(pool->device, pool->counted - reserved);
  pool->counted = reserved;
}

static int64_t missing(struct pool *pool, size_t size) {
  int64_t used = attribute(pool->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  int64_t more = used + (int64_t)size - attribute(pool->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  return more > 0 ? more : 0;
}

typedef CUresult (*FromPool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

static CUresult from_pool(CUdeviceptr *out, size_t size, CUmemoryPool handle, CUstream stream, FromPool allocate,
                          int captured) {
  struct device *device = device_of_thread();
  if (!device) return allocate(out, size, handle, stream);
  if (captured) { /* it becomes a node of a graph: see below */
    return informs(device) ? allocate(out, size, handle, stream) : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (size > INT64_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!handle) {
    CUdevice ordinal;
    if (real.cuCtxGetDevice(&ordinal) || real.cuDeviceGetMemPool(&handle, ordinal)) return CUDA_ERROR_INVALID_VALUE;
  }
  pthread_mutex_lock(&lock);
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  struct pool *pool = pool_of(handle, device);
  if (pool) {
    recount(pool);
    int64_t more = missing(pool, size);
    int allowed = memory_add(device, more);
    if (!allowed) { /* what was freed into the pool may be enough elsewhere */
      real.cuMemPoolTrimTo(handle, 0);
      recount(pool);
      more = missing(pool, size);
      allowed = memory_add(device, more);
    }
    if (allowed) {
      pool->counted += more;
      result = allocate(out, size, handle, stream);
      recount(pool);
    }
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
static void recount_all(void) {
  pthread_mutex_lock(&lock);
  for (struct pool *one = pools; one; one = one->next) recount(one);
  pthread_mutex_unlock(&lock);
}
/* Memory of cuMemAlloc may be freed in this way too. */
static CUresult free_async(CUdeviceptr at, CUstream stream, CUresult (*call)(CUdeviceptr, CUstream)) {
  struct entry *entry = take_out(MEMORY, at);
  CUresult result = ended(entry, call(at, stream));
  if (!result) recount_all();
  return result;
}
HOOK CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) { return free_async(at, stream, real.cuMemFreeAsync); }
HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream) { return free_async(at, stream, real.cuMemFreeAsync_ptsz); }
HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  CUresult result = real.cuMemPoolTrimTo(pool, keep);
  recount_all();
  return result;
}
HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  CUresult result = real.cuMemPoolDestroy(handle);
  pthread_mutex_lock(&lock);
  for (struct pool **link = &pools; !result && *link; link = &(*link)->next) {
    struct pool *pool = *link;
    if (pool->pool != handle) continue;
    memory_sub(pool->device, pool->counted);
    *link = pool->next;
    free(pool);
    break;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* Virtual memory: a handle, and mappings of it */

HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                          unsigned long long flags) {
  int where = properties ? properties->location.type : CU_MEM_LOCATION_TYPE_HOST;
  int of_host = where >= CU_MEM_LOCATION_TYPE_HOST && where <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  if (!of_host && where != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED; /* of which card cannot be told */
  struct device *device = of_host ? NULL : device_by_ordinal(properties->location.id);
  if (!device) return real.cuMemCreate(out, size, properties, flags);
  if (size > INT64_MAX || !memory_add(device, (int64_t)size)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = real.cuMemCreate(out, size, properties, flags);
  if (result) memory_sub(device, (int64_t)size);
  else remember(HANDLE, *out, (int64_t)size, device);
  return result;
}

/* Count one use of a handle less (its own, or a mapping's) before the driver ends it. Returns the entry if that was the last one.
 * With `lock` held. */
static struct entry *unuse(uint64_t handle, int released, int unmapped) {
  struct entry *entry = *slot(HANDLE, handle);
  if (!entry) return NULL;
  entry->references -= released;
  entry->mappings -= unmapped;
  return entry->references <= 0 && !entry->mappings ? unlink_entry(HANDLE, handle) : NULL;
}

/* The driver did not end it. With `lock` held. */
static void reuse(struct entry *last, uint64_t handle, int released, int unmapped) {
  if (last) link_entry(last);
  struct entry *entry = *slot(HANDLE, handle);
  if (!entry) return;
  entry->references += released;
  entry->mappings += unmapped;
}

HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  pthread_mutex_lock(&lock);
  struct entry *last = unuse(handle, 1, 0);
  pthread_mutex_unlock(&lock);
  CUresult result = real.cuMemRelease(handle);
  if (!result) return ended(last, result);
  pthread_mutex_lock(&lock);
  reuse(last, handle, 1, 0);
  pthread_mutex_unlock(&lock);
  return result;
}

/* The handle of an address, which has to be released once more. */
HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at) {
  CUresult result = real.cuMemRetainAllocationHandle(out, at);
  if (result) return result;
  pthread_mutex_lock(&lock);
  struct entry *entry = *slot(HANDLE, *out);
  if (entry) entry->references++;
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  pthread_mutex_lock(&lock);
  struct entry *entry = *slot(HANDLE, handle);
  struct device *device = entry ? entry->device : NULL;
  if (entry) entry->mappings++; /* before the call: another thread may release the handle after it */
  pthread_mutex_unlock(&lock);
  CUresult result = real.cuMemMap(at, size, offset, handle, flags);
  if (!device) return result;
  if (!result) {
    struct entry *mapping = remember(MAPPING, at, 0, device);
    if (mapping) mapping->handle = handle;
    return result;
  }
  pthread_mutex_lock(&lock);
  struct entry *last = unuse(handle, 0, 1);
  pthread_mutex_unlock(&lock);
  ended(last, CUDA_SUCCESS);
  return result;
}

HOOK CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  pthread_mutex_lock(&lock);
  struct entry *mapping = unlink_entry(MAPPING, at);
  struct entry *last = mapping ? unuse(mapping->handle, 0, 1) : NULL;
  pthread_mutex_unlock(&lock);
  CUresult result = real.cuMemUnmap(at, size);
  if (result && mapping) {
    pthread_mutex_lock(&lock);
    link_entry(mapping);
    reuse(last, mapping->handle, 0, 1);
    pthread_mutex_unlock(&lock);
    return result;
  }
  free(mapping);
  return ended(last, result);
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

/* Queries, and the ends of contexts. The driver takes NULL for an output that is not wanted. */

HOOK CUresult cuMemGetInfo_v2(size_t *left, size_t *all) {
  CUresult result = real.cuMemGetInfo_v2(left, all);
  struct device *device = result ? NULL : device_of_thread();
  if (device) {
    struct page_device *shown = atomic_load(&device->page);
    int64_t unused = shown->limit_bytes - atomic_load(&shown->used_bytes);
    if (unused < 0) unused = 0;
    if (left && (int64_t)*left > unused) *left = (size_t)unused; /* what others take beyond their shares is not there either */
    if (all && (int64_t)*all > shown->limit_bytes) *all = (size_t)shown->limit_bytes;
  }
  return result;
}

HOOK CUresult cuDeviceTotalMem_v2(size_t *all, CUdevice ordinal) {
  CUresult result = real.cuDeviceTotalMem_v2(all, ordinal);
  struct device *device = result || !all ? NULL : device_by_ordinal(ordinal);
  if (device && (int64_t)*all > atomic_load(&device->page)->limit_bytes) *all = (size_t)atomic_load(&device->page)->limit_bytes;
  return result;
}

static void end_context(CUcontext context) {
  forget_allocations(context);
  forget_launch_context(context);
  recount_all();
}

HOOK CUresult cuCtxDestroy_v2(CUcontext context) {
  CUresult result = real.cuCtxDestroy_v2(context);
  if (!result) end_context(context);
  return result;
}

HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  struct device *device = device_by_ordinal(ordinal);
  CUcontext context = NULL;
  if (device) {
    CUdevice current;
    if (!real.cuCtxGetDevice(&current) && current == ordinal) real.cuCtxGetCurrent(&context);
    if (!context) context = launch_context(device);
  }
  CUresult result = real.cuDevicePrimaryCtxReset_v2(ordinal);
  if (!result && context) end_context(context);
  return result;
}
