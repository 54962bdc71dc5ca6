/* What a program has of the driver, and what of it counts. */
#define _GNU_SOURCE
#include "table.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUCKETS = 4096, WATCH_MS = 200 };
pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *table[BUCKETS];
struct pool *known_pools;
static int exports; /* entries of this kind */
static int watched; /* a thread watches the pools */

/* The table. All with `table_lock` held. */

struct entry **find_slot(enum kind kind, uint64_t key) {
  struct entry **link = &table[(key >> 9 ^ key >> 21 ^ (uint64_t)kind) % BUCKETS];
  while (*link && ((*link)->kind != kind || (*link)->key != key)) link = &(*link)->next;
  return link;
}

struct memory *use_memory(struct memory *memory) {
  if (memory) memory->uses++;
  return memory;
}

void unuse_memory(struct memory *memory) {
  if (!memory || --memory->uses) return;
  if (memory->block) free(unlink_entry(SHARED_BLOCK, memory->block));
  memory_sub(memory->device, memory->bytes);
  free(memory);
}

/* End entries that are not in the table any more. */
void end_entries(struct entry *list) {
  for (struct entry *entry = list; entry; entry = list) {
    list = entry->next;
    unuse_memory(entry->memory);
    if (entry->pool) {
      entry->pool->allocated -= entry->bytes;
      recount_pool(entry->pool);
    }
    exports -= entry->kind == EXPORT;
    free(entry->place);
    free(entry);
  }
}

void link_entries(struct entry *list) {
  for (struct entry *entry = list; entry; entry = list) {
    list = entry->next;
    struct entry **link = find_slot(entry->kind, entry->key);
    entry->next = *link;
    *link = entry;
  }
}

struct entry *unlink_entry(enum kind kind, uint64_t key) {
  struct entry **link = find_slot(kind, key), *entry = *link;
  if (!entry) return NULL;
  *link = entry->next;
  entry->next = NULL;
  return entry;
}

/* Take those entries out of the table for which `matches` returns true. */
struct entry *unlink_entries(int (*matches)(const struct entry *, const void *), const void *what) {
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
struct entry *add_entry(struct entry made) {
  struct entry *entry = malloc(sizeof *entry);
  if (!entry) return NULL; /* the memory counts until the process ends */
  *entry = made;
  if (entry->kind != TILES) end_entries(unlink_entry(entry->kind, entry->key));
  exports += entry->kind == EXPORT;
  link_entries(entry);
  return entry;
}

struct memory *new_memory(struct device *device, int64_t bytes) {
  struct memory *memory = device ? malloc(sizeof *memory) : NULL;
  if (memory) *memory = (struct memory){device, bytes, 1, 0, 0};
  return memory;
}

/* An entry is out of the table before the driver frees its memory: from then on another thread may be given the same address. It
 * counts until then; NULL: not of a card in the grant, or not allocated here. */
struct entry *take_entry(enum kind kind, uint64_t key) {
  pthread_mutex_lock(&table_lock);
  struct entry *entry = unlink_entry(kind, key);
  pthread_mutex_unlock(&table_lock);
  return entry;
}

CUresult entries_ended(struct entry *list, CUresult result) {
  pthread_mutex_lock(&table_lock);
  if (result) link_entries(list);
  else end_entries(list);
  pthread_mutex_unlock(&table_lock);
  return result;
}

/* A child of fork has no memory of the card. */
static void after_fork(void) {
  pthread_mutex_init(&table_lock, NULL);
  memset(table, 0, sizeof table);
  known_pools = NULL;
  exports = watched = 0;
}
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

/* What the driver gives back by itself */

/* Return the attribute, or what is to be taken for it where the driver does not say. */
int64_t pool_attribute(CUmemoryPool pool, CUmemPool_attribute which, int64_t otherwise) {
  CUstreamCaptureMode mode;
  uint64_t value = 0;
  int relaxed = relax(&mode);
  int64_t result = real.cuMemPoolGetAttribute(pool, which, &value) ? otherwise : (int64_t)value;
  if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
  return result;
}

/* Count what the pool has reserved now. What a destroyed one had reserved is given back when all that was allocated of it is
 * freed. With `table_lock` held. */
void recount_pool(struct pool *pool) {
  int64_t bytes = pool->pool ? pool_attribute(pool->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, pool->counted) : pool->counted;
  if (!pool->pool && !pool->allocated) bytes = 0;
  if (bytes < pool->allocated) bytes = pool->allocated;
  if (!pool->device) return;
  if (bytes > pool->counted) memory_held(pool->device, bytes - pool->counted);
  else memory_sub(pool->device, pool->counted - bytes);
  pool->counted = bytes;
}

int is_closed(const struct entry *entry, const void *unused) {
  (void)unused;
  return entry->kind == EXPORT && fcntl((int)entry->key, F_GETSIG) != EXPORTED;
}
void look_at_exports(void) {
  if (exports) end_entries(unlink_entries(is_closed, NULL));
}

/* Count anew what may have been given back without a call that is seen here: a pool gives back what it does not need when the
 * program synchronises, and a handle that was exported lives until its descriptor is closed. `trim`: have pools give back
 * what they keep, as the driver does before it refuses memory. With `table_lock` held. */
void settle_memory(int trim) {
  for (struct pool *one = known_pools; one; one = one->next) {
    CUstreamCaptureMode mode;
    if (!one->pool || !one->device) continue;
    if (trim && relax(&mode)) {
      real.cuMemPoolTrimTo(one->pool, 0);
      real.cuThreadExchangeStreamCaptureMode(&mode);
    }
    recount_pool(one);
  }
  look_at_exports();
}

/* A pool gives back what was freed when the stream gets there, which no call shows. So pools that keep more than is allocated are
 * counted anew for as long as they do. */
static void *keep_watching(void *unused) {
  (void)unused;
  for (;;) {
    int keeps = 0;
    usleep(WATCH_MS * 1000);
    pthread_mutex_lock(&table_lock);
    for (struct pool *one = known_pools; one; one = one->next) keeps |= one->counted > one->allocated;
    if (keeps) settle_memory(0);
    pthread_mutex_unlock(&table_lock);
  }
  return NULL;
}

void watch_pools(void) {
  if (!watched) watched = start_thread(keep_watching);
}

/* Ask again for memory that was refused, if some was given back; return whether it is allowed. With `table_lock` held. */
int add_after_settling(struct device *device, int64_t bytes) {
  int64_t before = atomic_load(&device->held_bytes);
  settle_memory(1);
  return atomic_load(&device->held_bytes) < before && memory_add_now(device, bytes);
}

/* Memory that is gone when it is freed, or with its context */

CUcontext context_of_thread(void) {
  CUcontext context = NULL;
  real.cuCtxGetCurrent(&context);
  return context;
}
CUresult device_of_context(CUcontext context, CUdevice *ordinal) {
  CUcontext before = context_of_thread();
  if (context != before) real.cuCtxSetCurrent(context);
  CUresult result = real.cuCtxGetDevice(ordinal);
  if (context != before) real.cuCtxSetCurrent(before);
  return result;
}
/* Return the primary context; NULL if it is not active. */
CUcontext primary_context(CUdevice ordinal) {
  CUstreamCaptureMode mode;
  CUcontext context = NULL;
  unsigned flags;
  int active = 0, relaxed = relax(&mode);
  real.cuDevicePrimaryCtxGetState(ordinal, &flags, &active);
  if (active && !real.cuDevicePrimaryCtxRetain(&context, ordinal)) real.cuDevicePrimaryCtxRelease_v2(ordinal);
  if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
  return context;
}

/* Return the context with which memory ends that the thread allocates: for a green one the primary. With `table_lock` held. */
CUcontext context_of_memory(void) {
  CUcontext context = context_of_thread();
  CUdevice ordinal;
  return *find_slot(GREEN, (uint64_t)context) && !real.cuCtxGetDevice(&ordinal) ? primary_context(ordinal) : context;
}

int begin_allocation(struct device *device, int64_t bytes) {
  if (bytes < 0) return 0;
  if (memory_add(device, bytes)) return 1;
  pthread_mutex_lock(&table_lock);
  int allowed = add_after_settling(device, bytes);
  pthread_mutex_unlock(&table_lock);
  return allowed;
}

CUresult end_allocation(enum kind kind, CUresult result, uint64_t key, struct device *device, int64_t bytes) {
  if (result) {
    memory_sub(device, bytes);
    return result;
  }
  pthread_mutex_lock(&table_lock);
  add_entry((struct entry){.kind = kind, .key = key, .memory = new_memory(device, bytes), .context = context_of_memory()});
  pthread_mutex_unlock(&table_lock);
  return result;
}

/* Return how much of the card an allocation of this size takes, in whole blocks. */
int64_t whole_blocks(size_t size) {
  return size > INT64_MAX - BLOCK ? INT64_MAX : ((int64_t)size + BLOCK - 1) / BLOCK * BLOCK;
}

/* Find out of which card memory of this kind is: NULL for memory of the host, and of a card that is not in the grant. Returns
 * whether that can be told. */
int locate(const CUmemLocation *location, int type, struct device **device) {
  *device = NULL;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    *device = device_by_ordinal(location->id);
  } else if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) { /* the thread's card may have all of it, as with cuMemAllocManaged */
    *device = device_of_thread();
    if (!*device && link_devices()) *device = link_device(0);
  }
  return location->type >= 0 && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}
