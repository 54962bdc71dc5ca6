/* What takes the place of libcuda.so.1 in a container with a share of a card. The real library is behind it: the loader resolves
 * there what is not defined here, because this library needs it (DT_NEEDED, by an absolute path).
 *
 *   resolve.c  the functions of the real library, and which of them are taken the place of
 *   connect.c  the way to the share server
 *   link.c     the connection to the share server: turns, verdicts about memory, and what happens while it is away
 *   memory.c   allocations: none beyond the share, and queries that return the share
 *   compute.c  launches: only within a turn, and never far ahead of the device
 */
#ifndef LADING_LIBRARY_H
#define LADING_LIBRARY_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "cu.h"
#include "share.h"

#define HOOK __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)

/* The functions that are taken the place of. */
#define HOOKED(X) \
  X(cuInit) X(cuDeviceTotalMem_v2) X(cuCtxDestroy_v2) X(cuDevicePrimaryCtxReset_v2) X(cuMemGetInfo_v2) \
  X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged) X(cuMemFree_v2) \
  X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz) \
  X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz) X(cuMemPoolTrimTo) X(cuMemPoolDestroy) \
  X(cuMemCreate) X(cuMemRelease) X(cuMemRetainAllocationHandle) X(cuMemMap) X(cuMemUnmap) \
  X(cuArrayCreate_v2) X(cuArray3DCreate_v2) X(cuArrayDestroy) X(cuMipmappedArrayCreate) X(cuMipmappedArrayDestroy) \
  X(cuMemAlloc) X(cuMemAllocPitch) X(cuArrayCreate) X(cuArray3DCreate) \
  X(cuGraphAddMemAllocNode) X(cuGraphAddNode) X(cuGraphAddNode_v2) X(cuGraphAddNode_v3) \
  X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuLaunchKernelEx) X(cuLaunchKernelEx_ptsz) \
  X(cuLaunchCooperativeKernel) X(cuLaunchCooperativeKernel_ptsz) X(cuLaunchCooperativeKernelMultiDevice) \
  X(cuLaunch) X(cuLaunchGrid) X(cuLaunchGridAsync) X(cuGraphLaunch) X(cuGraphLaunch_ptsz) \
  X(cuGetProcAddress) X(cuGetProcAddress_v2)
/* Others that are called. */
#define CALLED(X) \
  X(cuDeviceGetUuid) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuDeviceGetMemPool) \
  X(cuMemPoolGetAttribute) X(cuStreamIsCapturing) X(cuStreamIsCapturing_ptsz) X(cuThreadExchangeStreamCaptureMode) \
  X(cuEventCreate) X(cuEventRecord) X(cuEventRecord_ptsz) X(cuEventSynchronize) X(cuEventElapsedTime)

struct real {
#define FIELD(name) __typeof__(&name) name;
  HOOKED(FIELD) CALLED(FIELD)
#undef FIELD
};
extern struct real real;

/* Whether calls on this stream become nodes of a graph. */
typedef CUresult (*IsCapturing)(CUstream, CUstreamCaptureStatus *);
static inline int is_captured(CUstream stream, IsCapturing is_capturing) {
  CUstreamCaptureStatus capturing = 0;
  return stream && !is_capturing(stream, &capturing) && capturing;
}

/* link.c */

#define NO_END INT64_MAX

enum turn { IDLE, WANTING, HOLDING, RELEASING };

struct device {
  int index;                        /* in the grant */
  struct page_device *_Atomic page; /* stays mapped when the server is away */
  _Atomic int turn;
  _Atomic int launching; /* threads between the look at the turn and the return of the driver's launch: it is not over before */
  _Atomic int waiting;   /* threads that wait for a turn, or for the device, and are about to launch */
  _Atomic int64_t last_launch;
  _Atomic int64_t held_bytes; /* of this process */
  _Atomic int64_t until;  /* the end of the last turn, as last seen: the page forgets it when the server takes the turn back */
  int64_t stopped_before; /* `stopped_ns` when the turn began */
  CUcontext context;          /* the last one that launched */
  int64_t fixed_began;        /* while the server is away: the beginning of the present period */
  int64_t left_bytes;         /* that this process may still allocate until the server is back */
  int renewing;
  struct queue {
    pthread_mutex_t lock;
    struct {
      CUevent event;
      int launches;
      int follows; /* the one before was not done when this was recorded: the time between them is that of the launches */
    } marks[16];
    unsigned first, next; /* marks that are not done */
    int unmarked;         /* launches since the last mark */
    int64_t unit;         /* time of a launch, as learned */
  } queue;
};

/* Return whether the driver keeps to the limit of memory: it is told to programs here, and nothing is refused. */
static inline int informs(struct device *device) { return atomic_load(&atomic_load(&device->page)->informs); }

/* Connect if that was not done in this process; 0, or CUDA_ERROR_SYSTEM_NOT_READY with a line on stderr. */
CUresult link_up(void);
/* Return the device of the calling thread's context; NULL if its card is not in the grant. */
struct device *device_of_thread(void);
struct device *device_by_ordinal(CUdevice);
/* Ask whether so many more bytes may be allocated; they count from then on. */
int memory_add(struct device *, int64_t bytes);
void memory_sub(struct device *, int64_t bytes);
/* Count bytes that are allocated already. */
void memory_held(struct device *, int64_t bytes);
/* Return when the device may be used: with a turn, or by the fixed share while the server is away. The thread counts as launching
 * from then on. */
void turn_begin(struct device *, int64_t estimate);
int turn_lasts(struct device *);
void forget_context(CUcontext);

/* compute.c */

/* Wait until the device has done the work of this context. */
void drain(struct device *, CUcontext);
void queues_reset(struct device *);

/* memory.c */
void allocations_forget(CUcontext);
void allocations_reset(void);
#endif
