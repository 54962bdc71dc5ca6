/* The driver's library, libcuda.so.1, and which card of the grant it means. In a container with a share of a card this library
 * takes its place. The real one is behind it: the loader resolves there what is not defined here, because this library needs it
 * (DT_NEEDED, by an absolute path). Each file uses only those above it:
 *
 *   connect.c  connect once to the share server
 *   link.c     the connection to the share server: turns, verdicts about memory, and what happens while it is away
 *   driver.c   the functions of the real library
 *   queue.c    the work that is queued on the device
 *   compute.c  launches: only within a turn, and never far ahead of the device
 *   table.c    what a program has of the driver, and what of it counts
 *   graphs.c   memory of graphs
 *   memory.c   allocations: none beyond the share, and queries that return the share
 *   virtual.c  memory of cuMemCreate
 *   contexts.c contexts
 *   resolve.c  which functions of the real library are replaced
 */
#ifndef LADING_DRIVER_H
#define LADING_DRIVER_H
#include "cu.h"
#include "link.h"

#define HOOK __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)

/* The functions that are taken the place of. */
#define HOOKED(X) \
  X(cuInit) X(cuDeviceTotalMem_v2) X(cuMemGetInfo_v2) \
  X(cuCtxCreate_v2) X(cuCtxCreate) X(cuCtxCreate_v3) X(cuCtxCreate_v4) X(cuDevicePrimaryCtxRetain) X(cuGreenCtxCreate) \
  X(cuCtxDestroy_v2) X(cuCtxDestroy) X(cuCtxAttach) X(cuCtxDetach) X(cuDevicePrimaryCtxReset_v2) X(cuDevicePrimaryCtxReset) \
  X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxRelease) X(cuCtxFromGreenCtx) X(cuGreenCtxDestroy) \
  X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged) X(cuMemFree_v2) \
  X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz) \
  X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz) X(cuMemPoolCreate) X(cuMemPoolTrimTo) X(cuMemPoolDestroy) \
  X(cuDeviceGetDefaultMemPool) X(cuDeviceGetMemPool) X(cuMemGetDefaultMemPool) X(cuMemGetMemPool) \
  X(cuMemCreate) X(cuMemRelease) X(cuMemRetainAllocationHandle) X(cuMemMap) X(cuMemUnmap) \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemMapArrayAsync) X(cuMemMapArrayAsync_ptsz) \
  X(cuArrayCreate_v2) X(cuArray3DCreate_v2) X(cuArrayDestroy) X(cuMipmappedArrayCreate) X(cuMipmappedArrayDestroy) \
  X(cuMemAlloc) X(cuMemAllocPitch) X(cuArrayCreate) X(cuArray3DCreate) \
  X(cuGraphAddMemAllocNode) X(cuGraphAddNode) X(cuGraphAddNode_v2) X(cuGraphAddNode_v3) \
  X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuLaunchKernelEx) X(cuLaunchKernelEx_ptsz) \
  X(cuLaunchCooperativeKernel) X(cuLaunchCooperativeKernel_ptsz) X(cuLaunchCooperativeKernelMultiDevice) \
  X(cuLaunch) X(cuLaunchGrid) X(cuLaunchGridAsync) X(cuGraphLaunch) X(cuGraphLaunch_ptsz) \
  X(cuGraphUpload) X(cuGraphUpload_ptsz) X(cuGraphInstantiate) X(cuGraphInstantiate_v2) X(cuGraphInstantiateWithFlags) \
  X(cuGraphInstantiateWithParams) X(cuGraphInstantiateWithParams_ptsz) X(cuGraphDestroy) X(cuGraphExecDestroy) \
  X(cuDeviceGraphMemTrim) \
  X(cuCtxSynchronize) X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuEventSynchronize) \
  X(cuGetProcAddress) X(cuGetProcAddress_v2)
/* Others that are called. */
#define CALLED(X) \
  X(cuDeviceGetUuid) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxGetDevice) X(cuStreamGetCtx) \
  X(cuDevicePrimaryCtxGetState) X(cuMemGetAllocationPropertiesFromHandle) X(cuMemPoolGetAttribute) \
  X(cuDeviceGetGraphMemAttribute) X(cuStreamGetCaptureInfo_v2) X(cuStreamGetCaptureInfo_v2_ptsz) \
  X(cuStreamIsCapturing) X(cuStreamIsCapturing_ptsz) X(cuThreadExchangeStreamCaptureMode) \
  X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord) X(cuEventRecord_ptsz) X(cuEventQuery) X(cuEventElapsedTime)

struct real {
#define FIELD(name) __typeof__(&name) name;
  HOOKED(FIELD) CALLED(FIELD)
#undef FIELD
};
extern struct real real;

/* Whether calls on this stream become nodes of a graph. No capture takes the legacy default stream; in functions with _ptsz the
 * default stream is the thread's own, which may be captured. */
static inline int is_captured_ptsz(CUstream stream) {
  CUstreamCaptureStatus capturing = 0;
  return !real.cuStreamIsCapturing_ptsz(stream, &capturing) && capturing;
}
static inline int is_captured(CUstream stream) {
  CUstreamCaptureStatus capturing = 0;
  return stream && !real.cuStreamIsCapturing(stream, &capturing) && capturing;
}

/* Have the thread's own calls break no capture that another thread has begun in global mode, until `mode` is set again; return
 * whether that is so. */
static inline int relax(CUstreamCaptureMode *mode) {
  *mode = 2;
  return !real.cuThreadExchangeStreamCaptureMode(mode);
}

/* Return the device of the calling thread's context; NULL if its card is not in the grant. */
struct device *device_of_thread(void);
struct device *device_by_ordinal(CUdevice);
#endif
