/* The functions of the real library, and cuGetProcAddress, by which cudart asks for nearly all of them. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "library.h"

#ifndef REAL_LIBRARY
#define REAL_LIBRARY "/usr/local/lading/gpu/real/libcuda.so.1"
#endif

struct real real;

static const struct {
  const char *name;
  void *hook;
  void **real;
} hooks[] = {
#define ROW(name) {#name, (void *)name, (void **)&real.name},
    HOOKED(ROW)
#undef ROW
};
enum { HOOKS = sizeof hooks / sizeof *hooks };

/* What this driver does not have: a program that asks for it by dlsym gets our function. Extra arguments do no harm in the
 * calling conventions of x86-64 and aarch64. */
static CUresult not_in_this_driver(void) { return CUDA_ERROR_NOT_FOUND; }

static void *find(void *library, const char *name) {
  void *found = library ? dlsym(library, name) : NULL;
  return found ? found : (void *)not_in_this_driver;
}

/* When this library is loaded, so that no call comes before: the real one is loaded already. */
__attribute__((constructor)) static void find_all(void) {
  void *library = dlopen(REAL_LIBRARY, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) library = dlopen(REAL_LIBRARY, RTLD_LAZY);
  if (!library) fprintf(stderr, "lading: cannot use the driver's library: %s\n", dlerror());
#define FIND(name) real.name = (__typeof__(real.name))find(library, #name);
  HOOKED(FIND) CALLED(FIND)
#undef FIND
}

/* Whether a function of this name allocates or launches, so that it must not be used past the share. */
static int is_sensitive(const char *name) {
  if (strstr(name, "Launch") && !strstr(name, "Attribute") && !strstr(name, "HostFunc")) return 1;
  if (strncmp(name, "cuMem", 5) && !strstr(name, "Array")) return 0;
  return strstr(name, "Alloc") && !strstr(name, "Host") && !strstr(name, "Granularity") && !strstr(name, "Properties")
             ? 1
             : !strcmp(name, "cuMemCreate") || (strstr(name, "Array") && strstr(name, "Create"));
}

/* Return our function for the driver's. The driver decides which version and which variant a name means: so pointers are
 * compared, not names. What looks like an allocation or a launch and is none of those that we know does not exist for the program:
 * otherwise it would be a way past the share. */
static CUresult replace(const char *name, void **found, CUresult result) {
  if (result || !found || !*found) return result;
  for (int i = 0; i < HOOKS; i++) {
    if (*hooks[i].real == *found) {
      *found = hooks[i].hook;
      return result;
    }
  }
  for (int i = 0; i < HOOKS; i++) {
    if (*found == hooks[i].hook) return result;
  }
  if (is_sensitive(name)) {
    fprintf(stderr, "lading: %s of this driver is not known, and cannot be used with a share of a card\n", name);
    *found = NULL;
    return CUDA_ERROR_NOT_FOUND;
  }
  return result;
}

HOOK CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
  return replace(name, found, real.cuGetProcAddress(name, found, version, flags));
}

HOOK CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                                  CUdriverProcAddressQueryResult *how) {
  return replace(name, found, real.cuGetProcAddress_v2(name, found, version, flags, how));
}

HOOK CUresult cuInit(unsigned flags) {
  CUresult result = link_up();
  return result ? result : real.cuInit(flags);
}
