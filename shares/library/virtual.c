/* Virtual memory: handles of cuMemCreate, their mappings, also into arrays, and the descriptors that they are exported to. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

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
  pthread_mutex_lock(&table_lock);
  add_entry((struct entry){.kind = HANDLE, .key = *out, .memory = new_memory(device, (int64_t)size), .references = 1});
  pthread_mutex_unlock(&table_lock);
  return result;
}

/* Count one more handle: the driver may return the same one again. Takes over one use of the memory. With `table_lock` held. */
static void add_handle(uint64_t handle, struct memory *memory) {
  struct entry *entry = *find_slot(HANDLE, handle);
  if (!entry) {
    add_entry((struct entry){.kind = HANDLE, .key = handle, .memory = memory, .references = 1});
    return;
  }
  entry->references++;
  unuse_memory(memory);
}

HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  pthread_mutex_lock(&table_lock);
  struct entry *entry = *find_slot(HANDLE, handle);
  struct entry *last = entry && !--entry->references ? unlink_entry(HANDLE, handle) : NULL;
  pthread_mutex_unlock(&table_lock);
  CUresult result = real.cuMemRelease(handle);
  pthread_mutex_lock(&table_lock);
  if (result) {
    link_entries(last);
    if (entry && (entry = *find_slot(HANDLE, handle))) entry->references++;
  } else {
    end_entries(last);
    look_at_exports();
  }
  pthread_mutex_unlock(&table_lock);
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
  pthread_mutex_lock(&table_lock);
  struct entry *mapping = unlink_entries(is_mapped_at, &at);
  if (mapping && mapping->memory) add_handle(*out, use_memory(mapping->memory));
  link_entries(mapping);
  pthread_mutex_unlock(&table_lock);
  return result;
}

/* Use so many bytes of a handle's memory; return whether that is allowed. How much memory there is of what another process has
 * exported is seen from its mapping only: it counts from then on. With `table_lock` held. */
static int use_handle(uint64_t handle, size_t size, struct memory **memory) {
  struct entry *entry = *find_slot(HANDLE, handle);
  *memory = entry ? use_memory(entry->memory) : NULL;
  int64_t more = *memory && (*memory)->imported && size < INT64_MAX ? (int64_t)size - (*memory)->bytes : 0;
  if (more <= 0) return 1;
  int allowed = memory_add((*memory)->device, more) || add_after_settling((*memory)->device, more);
  if (allowed) (*memory)->bytes += more;
  else unuse_memory(*memory);
  return allowed;
}

HOOK CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
  struct memory *memory;
  pthread_mutex_lock(&table_lock);
  int allowed = use_handle(handle, size, &memory); /* before the call: another thread may release the handle after it */
  pthread_mutex_unlock(&table_lock);
  if (!allowed) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = real.cuMemMap(at, size, offset, handle, flags);
  pthread_mutex_lock(&table_lock);
  if (result) unuse_memory(memory);
  else add_entry((struct entry){.kind = MAPPING, .key = at, .memory = memory, .bytes = (int64_t)size});
  pthread_mutex_unlock(&table_lock);
  return result;
}

/* A range may have several mappings. */
HOOK CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  struct range range = {at, size};
  pthread_mutex_lock(&table_lock);
  struct entry *list = unlink_entries(is_mapped_in, &range);
  pthread_mutex_unlock(&table_lock);
  return entries_ended(list, real.cuMemUnmap(at, size));
}

HOOK CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags) {
  CUresult result = real.cuMemExportToShareableHandle(out, handle, type, flags);
  if (result || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return result; /* no other keeps the memory */
  int descriptor = *(int *)out;
  pthread_mutex_lock(&table_lock);
  struct entry *entry = *find_slot(HANDLE, handle);
  if (entry && !fcntl(descriptor, F_SETSIG, EXPORTED)) {
    add_entry((struct entry){.kind = EXPORT, .key = (uint64_t)descriptor, .memory = use_memory(entry->memory)});
  }
  pthread_mutex_unlock(&table_lock);
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
  pthread_mutex_lock(&table_lock);
  struct entry *entry = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? *find_slot(EXPORT, descriptor) : NULL;
  struct memory *memory = entry && !is_closed(entry, NULL) ? use_memory(entry->memory) : NULL;
  pthread_mutex_unlock(&table_lock);
  CUresult result = real.cuMemImportFromShareableHandle(out, handle, type);
  pthread_mutex_lock(&table_lock);
  if (result) unuse_memory(memory);
  else if (memory || (memory = new_imported(*out))) add_handle(*out, memory);
  pthread_mutex_unlock(&table_lock);
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
  struct entry *entry = *find_slot(ARRAY, array);
  if (!entry) entry = *find_slot(MIPMAPPED, array);
  return entry ? entry->context : context_of_memory();
}

/* Return an entry for what is to be mapped, which is not in the table; NULL if it does not count. With `table_lock` held. */
static struct entry *new_tile(const CUarrayMapInfo *place) {
  struct entry *handle = place->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? *find_slot(HANDLE, place->memHandle) : NULL;
  struct entry *entry = handle ? malloc(sizeof *entry) : NULL;
  CUarrayMapInfo *copy = entry ? malloc(sizeof *copy) : NULL;
  uint64_t array = (uint64_t)place->resource;
  if (copy) {
    *copy = *place;
    *entry = (struct entry){.kind = TILES, .key = array, .memory = use_memory(handle->memory), .place = copy};
    entry->context = context_of_array(array);
    return entry;
  }
  free(entry);
  return NULL;
}

static CUresult map_array(CUarrayMapInfo *list, unsigned number, CUstream stream,
                          CUresult (*call)(CUarrayMapInfo *, unsigned, CUstream)) {
  struct entry *made = NULL, **last = &made;
  pthread_mutex_lock(&table_lock);
  for (unsigned i = 0; list && i < number; i++) { /* before the call: another thread may release the handle after it */
    if ((*last = new_tile(&list[i]))) last = &(*last)->next;
  }
  pthread_mutex_unlock(&table_lock);
  CUresult result = call(list, number, stream);
  pthread_mutex_lock(&table_lock);
  for (unsigned i = 0; i < number && !result; i++) {
    struct entry *one = made;
    end_entries(unlink_entries(is_tile_at, &list[i]));
    if (!one || memcmp(one->place, &list[i], sizeof list[i])) continue;
    made = one->next;
    one->next = NULL;
    link_entries(one);
  }
  end_entries(made);
  pthread_mutex_unlock(&table_lock);
  return result;
}
HOOK CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned number, CUstream stream) {
  return map_array(list, number, stream, real.cuMemMapArrayAsync);
}
HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned number, CUstream stream) {
  return map_array(list, number, stream, real.cuMemMapArrayAsync_ptsz);
}
