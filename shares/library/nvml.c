/* What takes the place of libnvidia-ml.so.1 in a container with a share of a card, so that nvidia-smi and NVML show the share's
 * memory, not the card's. The real library is behind it (DT_NEEDED, by an absolute path), and has all other functions.
 *
 * It informs; what limits is libcuda.so.1 (driver.h). Without the share server, memory cannot be asked for. It takes the page of
 * libcuda.so.1 where that is connected; else it connects for as long as it takes to get the page, so that it does not take
 * the place of a process that launches work.
 * Source of names and types: nvidia-ml-py (BSD). */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "share.h"

#define HOOK __attribute__((visibility("default")))

enum { NVML_SUCCESS = 0, NVML_ERROR_TIMEOUT = 10, NVML_ERROR_FUNCTION_NOT_FOUND = 13, UUID_BYTES = 96 };
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct {
  unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef nvmlReturn_t (*MemoryInfo)(nvmlDevice_t, void *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct connection share = {.fd = -1};

static void *find(const char *name) {
  void *library = dlopen(REAL_LIBRARY, RTLD_LAZY | RTLD_NOLOAD);
  return library ? dlsym(library, name) : NULL;
}

/* A child of fork does not have the thread that may have held the lock. A connection that this thread was making would take a place
 * until the child ends. The page is good in the child too. */
static void after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  if (share.fd >= 0) share_disconnect(&share);
}
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

static int is_written(struct page *page, int64_t clock_ahead) {
  return page && now_ns() + clock_ahead - atomic_load(&page->beat) < BEAT_LOST_MS * MS;
}

static struct page *page_of_cuda(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  struct page *(*get)(int64_t *) = library ? dlsym(library, "lading_page") : NULL;
  int64_t clock_ahead = 0;
  struct page *page = get ? get(&clock_ahead) : NULL;
  if (library) dlclose(library);
  return is_written(page, clock_ahead) ? page : NULL;
}

/* Return the page that the server writes to now; NULL if no server answers. With `lock` held. */
static struct page *current_page(void) {
  struct page *page = page_of_cuda();
  if (page) return page;
  if (is_written(share.page, share.clock_ahead)) return share.page;
  if ((page = share.page)) {
    share.page = NULL;
    munmap(page, sizeof *page);
  }
  if (!share_connect(0, &share)) return NULL;
  share_disconnect(&share);
  return share.page;
}

static int parse_uuid(const char *text, unsigned char *out) {
  int digits = 0;
  if (strncmp(text, "GPU-", 4)) return 0;
  for (text += 4; *text && digits < 32; text++) {
    if (*text == '-') continue;
    int value = *text <= '9' ? *text - '0' : (*text | 32) - 'a' + 10;
    out[digits / 2] = (unsigned char)(digits % 2 ? (out[digits / 2] << 4) | value : value);
    digits++;
  }
  return digits == 32;
}

/* Return the share's memory and what is used of it. `shared`: whether the device is a card of the grant. */
static nvmlReturn_t look(nvmlDevice_t device, int *shared, nvmlMemory_t *memory) {
  nvmlReturn_t (*get_uuid)(nvmlDevice_t, char *, unsigned) = find("nvmlDeviceGetUUID");
  char text[UUID_BYTES];
  unsigned char uuid[16];
  *shared = 0;
  if (!get_uuid || get_uuid(device, text, sizeof text) || !parse_uuid(text, uuid)) return NVML_SUCCESS;
  pthread_mutex_lock(&lock);
  struct page *page = current_page();
  for (int i = 0; page && i < page->devices; i++) {
    struct page_device *one = &page->device[i];
    if (memcmp(one->uuid, uuid, sizeof uuid)) continue;
    int64_t used = atomic_load(&one->used_bytes), left = one->limit_bytes - used;
    *shared = 1;
    *memory = (nvmlMemory_t){(unsigned long long)one->limit_bytes, (unsigned long long)(left > 0 ? left : 0), (unsigned long long)used};
  }
  pthread_mutex_unlock(&lock);
  return page ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
}

static nvmlReturn_t ask(const char *name, nvmlDevice_t device, void *out, int *shared, nvmlMemory_t *memory) {
  MemoryInfo real = (MemoryInfo)find(name);
  nvmlReturn_t result = real ? real(device, out) : NVML_ERROR_FUNCTION_NOT_FOUND; /* checks the device, and the version */
  return result ? result : look(device, shared, memory);
}

HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
  int shared = 0;
  nvmlMemory_t memory;
  nvmlReturn_t result = ask("nvmlDeviceGetMemoryInfo", device, out, &shared, &memory);
  if (shared) *out = memory;
  return result;
}

HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
  int shared = 0;
  nvmlMemory_t memory;
  nvmlReturn_t result = ask("nvmlDeviceGetMemoryInfo_v2", device, out, &shared, &memory);
  if (shared) *out = (nvmlMemory_v2_t){out->version, memory.total, 0, memory.free, memory.used};
  return result;
}
