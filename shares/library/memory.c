/* Allocations: none beyond the container's share, and queries that return the share. */
#include <stdlib.h>

#include "graphs.h"
#include "table.h"

static pthread_mutex_t unsure = PTHREAD_MUTEX_INITIALIZER;

static void after_fork(void) { pthread_mutex_init(&unsure, NULL); }
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

/* Use the block in which a small allocation is, if it counts already; else return NULL. With `table_lock` held. */
static struct memory *use_block(CUdeviceptr at) {
  struct entry *shared = *find_slot(SHARED_BLOCK, at / BLOCK);
  return shared ? use_memory(shared->memory) : NULL;
}
static struct memory *new_block(struct device *device, CUdeviceptr at) {
  struct memory *memory = new_memory(device, BLOCK);
  if (memory && add_entry((struct entry){.kind = SHARED_BLOCK, .key = at / BLOCK, .memory = memory})) memory->block = at / BLOCK;
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
  pthread_mutex_lock(&table_lock);
  struct memory *memory = size < BLOCK ? use_block(*at) : NULL;
  if (memory) {
    memory_sub(device, counted);
  } else if (counted || add_after_settling(device, bytes)) {
    if (counted && counted < bytes) memory_held(device, bytes - counted);
    memory = size < BLOCK ? new_block(device, *at) : new_memory(device, bytes);
  }
  if (memory) add_entry((struct entry){.kind = MEMORY, .key = *at, .memory = memory, .context = context_of_memory()});
  pthread_mutex_unlock(&table_lock);
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
  struct entry *entry = take_entry(kind, (uint64_t)(key)); \
  return entries_ended(entry, call)

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
  pthread_mutex_lock(&table_lock);
  struct entry *entry = unlink_entry(kind, key);
  if (entry && (!entry->memory || !entry->memory->bytes)) entry->next = unlink_entries(is_tile_of, &key);
  pthread_mutex_unlock(&table_lock);
  return entry;
}
HOOK CUresult cuArrayDestroy(CUarray array) {
  struct entry *list = take_out_array(ARRAY, (uint64_t)array);
  return entries_ended(list, real.cuArrayDestroy(array));
}
HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  struct entry *list = take_out_array(MIPMAPPED, (uint64_t)array);
  return entries_ended(list, real.cuMipmappedArrayDestroy(array));
}

/* Pools: what they have reserved counts, which is more than what programs have of them */

/* Return what is known of a pool; NULL if there is no memory for that. With `table_lock` held. */
static struct pool *pool_of(CUmemoryPool pool, struct device *device) {
  for (struct pool *one = known_pools; one; one = one->next) {
    if (one->pool == pool) return one;
  }
  struct pool *one = calloc(1, sizeof *one);
  if (one) {
    *one = (struct pool){.pool = pool, .device = device, .next = known_pools};
    known_pools = one;
    watch_pools();
  }
  return one;
}

/* Forget the destroyed pools of which no memory is left. With `table_lock` held. */
static void drop_pools(void) {
  for (struct pool **link = &known_pools, *one; (one = *link);) {
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
  pthread_mutex_lock(&table_lock);
  pool_of(*pool, device);
  pthread_mutex_unlock(&table_lock);
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
  int64_t used = pool_attribute(pool->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool->counted);
  int64_t more = used + size - pool_attribute(pool->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0);
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

static int is_of_card(CUmemoryPool handle) {
  pthread_mutex_lock(&table_lock);
  const struct pool *pool = pool_of(handle, device_of_thread());
  pthread_mutex_unlock(&table_lock);
  return pool && pool->device;
}

enum { PER_THREAD = 2 };
typedef CUresult (*FromPool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

static CUresult from_pool(CUdeviceptr *out, size_t size, CUmemoryPool handle, CUstream stream, FromPool allocate,
                          int captured) {
  struct device *device = device_of_thread();
  if (captured) { /* it becomes a node of a graph */
    CUresult result = allocate(out, size, handle, stream);
    if (!result && (!handle || is_of_card(handle))) graph_captured(stream, captured == PER_THREAD, size);
    return result;
  }
  if (!handle) handle = pool_of_stream(stream, &device);
  if (!handle) return allocate(out, size, handle, stream); /* the driver says what is wrong */
  pthread_mutex_lock(&table_lock);
  struct pool *pool = pool_of(handle, device);
  if (!pool || !pool->device) {
    pthread_mutex_unlock(&table_lock);
    return pool ? allocate(out, size, handle, stream) : CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  int64_t bytes = size > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)size;
  recount_pool(pool);
  int64_t more = missing(pool, bytes);
  int allowed = !more || memory_add_now(pool->device, more);
  if (!allowed) { /* what was freed into the pools may be enough elsewhere */
    settle_memory(1);
    more = missing(pool, bytes);
    allowed = memory_add_now(pool->device, more);
  }
  if (allowed) {
    pool->counted += more;
    result = allocate(out, size, handle, stream);
    if (!result && add_entry((struct entry){.kind = MEMORY, .key = *out, .pool = pool, .bytes = bytes})) pool->allocated += bytes;
    recount_pool(pool);
  }
  pthread_mutex_unlock(&table_lock);
  return result;
}

HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  if (!pool) return real.cuMemAllocFromPoolAsync(out, size, pool, stream);
  return from_pool(out, size, pool, stream, real.cuMemAllocFromPoolAsync, is_captured(stream));
}
HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
  if (!pool) return real.cuMemAllocFromPoolAsync_ptsz(out, size, pool, stream);
  return from_pool(out, size, pool, stream, real.cuMemAllocFromPoolAsync_ptsz, is_captured_ptsz(stream) ? PER_THREAD : 0);
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
  return from_pool(out, size, NULL, stream, current_pool_ptsz, is_captured_ptsz(stream) ? PER_THREAD : 0);
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
  pthread_mutex_lock(&table_lock);
  settle_memory(0);
  pthread_mutex_unlock(&table_lock);
  return result;
}
/* With `table_lock` held for the time of the call: a pool that is destroyed cannot be asked for what it has. */
HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  pthread_mutex_lock(&table_lock);
  CUresult result = real.cuMemPoolDestroy(handle);
  for (struct pool *one = known_pools; one && !result; one = one->next) {
    if (one->pool != handle) continue;
    one->pool = NULL;
    recount_pool(one);
  }
  drop_pools();
  pthread_mutex_unlock(&table_lock);
  return result;
}

/* What cannot be counted, and is refused where the card is shared and its driver does not limit memory: calls of the first version of
 * the API (CUDA 3.1 and older). */

static int must_count(void) {
  struct device *device = device_of_thread();
  return device && !informs(device);
}

#define REFUSE(call) return must_count() ? CUDA_ERROR_NOT_SUPPORTED : (call)

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
    pthread_mutex_lock(&table_lock);
    settle_memory(0);
    pthread_mutex_unlock(&table_lock);
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
