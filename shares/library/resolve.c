/* Replace functions of the real library where a program asks for them: cudart asks cuGetProcAddress for nearly all. */
#include <stdio.h>
#include <string.h>

#include "compute.h"
#include "driver.h"

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
  return link_up() && turns_up() ? real.cuInit(flags) : CUDA_ERROR_SYSTEM_NOT_READY;
}
