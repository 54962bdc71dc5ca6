/* Contexts: each has memory of its own, which counts from before it is made, and ends with what was allocated in it. */
#include <stdlib.h>

#include "compute.h"
#include "table.h"

static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER; /* whether a primary context is active changes with it held */

static void after_fork(void) { pthread_mutex_init(&primary_lock, NULL); }
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

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
  pthread_mutex_lock(&table_lock);
  struct entry *list = unlink_entries(ends_with, context);
  pthread_mutex_unlock(&table_lock);
  return list;
}
/* `device`: of the context; NULL if it is not in the grant, or not a context. */
static CUresult context_ended(CUcontext context, struct device *device, struct entry *list, CUresult result) {
  if (!result) {
    forget_launch_context(context);
    if (device) context_end(device);
  }
  return entries_ended(list, result);
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
  pthread_mutex_lock(&table_lock);
  struct entry *entry = *find_slot(ATTACHED, (uint64_t)*out);
  if (entry) entry->references++;
  else add_entry((struct entry){.kind = ATTACHED, .key = (uint64_t)*out, .references = 1, .context = *out});
  pthread_mutex_unlock(&table_lock);
  return result;
}
/* The one that is for cuCtxCreate destroys it: the last. */
HOOK CUresult cuCtxDetach(CUcontext context) {
  pthread_mutex_lock(&table_lock);
  struct entry *entry = *find_slot(ATTACHED, (uint64_t)context);
  int is_last = !entry || !entry->references;
  struct entry *list = is_last ? unlink_entries(ends_with, context) : NULL;
  if (!is_last) entry->references--;
  pthread_mutex_unlock(&table_lock);
  struct device *device = is_last ? device_of(context) : NULL;
  CUresult result = real.cuCtxDetach(context);
  if (is_last) return context_ended(context, device, list, result);
  pthread_mutex_lock(&table_lock);
  if (result && (entry = *find_slot(ATTACHED, (uint64_t)context))) entry->references++;
  pthread_mutex_unlock(&table_lock);
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
/* The release of the last reference resets the context. Whether it was the last is seen after it only, so `table_lock` is held for
 * the time of the call: no other thread allocates in the next primary context meanwhile. */
static CUresult released(CUdevice ordinal, CUcontext context, CUresult result) {
  int is_last = !result && context && !primary_context(ordinal);
  struct entry *list = is_last ? unlink_entries(ends_with, context) : NULL;
  pthread_mutex_unlock(&table_lock);
  if (is_last) result = context_ended(context, device_by_ordinal(ordinal), list, result);
  pthread_mutex_unlock(&primary_lock);
  return result;
}
static CUresult release(CUdevice ordinal, CUresult (*call)(CUdevice)) {
  pthread_mutex_lock(&primary_lock);
  pthread_mutex_lock(&table_lock);
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
  pthread_mutex_lock(&table_lock);
  add_entry((struct entry){.kind = GREEN, .key = (uint64_t)*out});
  pthread_mutex_unlock(&table_lock);
  return result;
}
HOOK CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  CUcontext own;
  CUdevice ordinal;
  if (real.cuCtxFromGreenCtx(&own, green) || device_of_context(own, &ordinal)) return real.cuGreenCtxDestroy(green);
  pthread_mutex_lock(&primary_lock);
  pthread_mutex_lock(&table_lock);
  CUcontext context = primary_context(ordinal);
  CUresult result = real.cuGreenCtxDestroy(green);
  if (!result) {
    free(unlink_entry(GREEN, (uint64_t)own));
    forget_launch_context(own);
  }
  return released(ordinal, context, result);
}
