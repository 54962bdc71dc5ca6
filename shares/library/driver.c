/* The functions of the real library, and the grant's device for a CUDA ordinal. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct real real;

static int ordinals[MAX_DEVICES]; /* by CUDA's ordinal: index + 1, 0 if not looked for, -1 if not in the grant */

/* What this driver does not have: a program that asks for it by dlsym gets our function. Extra arguments do no harm in the
 * calling conventions of x86-64 and aarch64. */
static CUresult not_in_this_driver(void) { return CUDA_ERROR_NOT_FOUND; }

static void *find(void *library, const char *name) {
  void *found = library ? dlsym(library, name) : NULL;
  return found ? found : (void *)not_in_this_driver;
}

static void after_fork(void) { memset(ordinals, 0, sizeof ordinals); }

/* When this library is loaded, so that no call comes before: the real one is loaded already. */
__attribute__((constructor)) static void find_all(void) {
  void *library = dlopen(REAL_LIBRARY, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) library = dlopen(REAL_LIBRARY, RTLD_LAZY);
  if (!library) fprintf(stderr, "lading: cannot use the driver's library: %s\n", dlerror());
#define FIND(name) real.name = (__typeof__(real.name))find(library, #name);
  HOOKED(FIND) CALLED(FIND)
#undef FIND
  pthread_atfork(NULL, NULL, after_fork);
}

struct device *device_by_ordinal(CUdevice ordinal) {
  if (ordinal < 0 || ordinal >= MAX_DEVICES || !link_devices()) return NULL;
  if (!ordinals[ordinal]) {
    CUuuid uuid;
    int found = -1;
    if (real.cuDeviceGetUuid(&uuid, ordinal)) return NULL;
    for (int i = 0; i < link_devices(); i++) {
      if (!memcmp(atomic_load(&link_device(i)->page)->uuid, uuid.bytes, 16)) found = i + 1;
    }
    ordinals[ordinal] = found;
  }
  return ordinals[ordinal] > 0 ? link_device(ordinals[ordinal] - 1) : NULL;
}

struct device *device_of_thread(void) {
  CUdevice ordinal;
  return real.cuCtxGetDevice(&ordinal) ? NULL : device_by_ordinal(ordinal);
}
