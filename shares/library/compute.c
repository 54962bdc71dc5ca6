/* Launches: only within a turn, and never more ahead of the device than a turn can wait for.
 *
 * A turn says nothing if a program can queue seconds of work within it. So marks (events) are put between launches, and a launch
 * waits while more than QUEUE_NS of work is not done. How long a launch takes is learned from the marks. */
#include "library.h"

#define QUEUE_NS (10 * MS) /* of work that is queued on the device at most, besides one launch */
#define MARK_NS (2 * MS)   /* of work between two marks */
#define FIRST_UNIT_NS (10 * MS)
enum { MARKS = 16, LEAST_UNIT_NS = 1000 };

void queues_reset(struct device *device) {
  struct queue *queue = &device->queue;
  pthread_mutex_init(&queue->lock, NULL);
  for (int i = 0; i < MARKS; i++) queue->marks[i].event = NULL;
  queue->first = queue->next = 0;
  queue->unmarked = 0;
  queue->unit = FIRST_UNIT_NS;
}

/* Calls of our own must not break a capture that another thread has begun in global mode. */
static int relax(CUstreamCaptureMode *mode) {
  *mode = 2;
  return !real.cuThreadExchangeStreamCaptureMode(mode);
}

static void forget_marks(struct queue *queue) {
  queue->first = queue->next;
  queue->unmarked = 0;
}

void drain(struct device *device, CUcontext context) {
  CUcontext before = NULL;
  CUstreamCaptureMode mode;
  if (!context) return;
  real.cuCtxGetCurrent(&before);
  if (before != context) real.cuCtxSetCurrent(context);
  int relaxed = relax(&mode);
  real.cuCtxSynchronize();
  if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
  if (before != context) real.cuCtxSetCurrent(before);
  pthread_mutex_lock(&device->queue.lock);
  forget_marks(&device->queue);
  pthread_mutex_unlock(&device->queue.lock);
}

static int64_t ahead(const struct queue *queue) {
  int64_t launches = queue->unmarked;
  for (unsigned i = queue->first; i != queue->next; i++) launches += queue->marks[i % MARKS].launches;
  return launches * queue->unit;
}

/* Wait for the oldest mark, and learn from it how long a launch takes. */
static void wait_for_mark(struct queue *queue) {
  unsigned at = queue->first % MARKS, before = (queue->first + MARKS - 1) % MARKS;
  float ms;
  if (real.cuEventSynchronize(queue->marks[at].event)) {
    forget_marks(queue); /* its context is gone */
    return;
  }
  if (queue->marks[at].follows && !real.cuEventElapsedTime(&ms, queue->marks[before].event, queue->marks[at].event) && ms > 0) {
    int64_t unit = (int64_t)(ms * 1e6) / (queue->marks[at].launches ? queue->marks[at].launches : 1);
    queue->unit = (queue->unit + unit) / 2;
    if (queue->unit < LEAST_UNIT_NS) queue->unit = LEAST_UNIT_NS;
  }
  queue->first++;
}

typedef CUresult (*Record)(CUevent, CUstream);

static void mark(struct queue *queue, CUstream stream, Record record) {
  if (queue->next - queue->first == MARKS - 1) wait_for_mark(queue); /* the one before the first is still compared with */
  unsigned at = queue->next % MARKS;
  CUevent *event = &queue->marks[at].event;
  if (!*event && real.cuEventCreate(event, 0)) return;
  if (record(*event, stream)) {
    *event = NULL; /* of a context that is gone: a new one next time */
    return;
  }
  queue->marks[at].launches = queue->unmarked;
  queue->marks[at].follows = queue->next != queue->first;
  queue->unmarked = 0;
  queue->next++;
}

/* Return the device if the launch needs a turn, after it has one; NULL if it needs none. */
static struct device *begin_launch(CUstream stream, IsCapturing is_capturing) {
  struct device *device = device_of_thread();
  if (!device) return NULL;
  if (is_captured(stream, is_capturing)) return NULL; /* it becomes a node of a graph */
  atomic_fetch_add(&device->launching, 1); /* before the look: one that gives the turn back looks at this after it did */
  if (!LIKELY(atomic_load(&device->turn) == HOLDING && turn_lasts(device))) {
    struct queue *queue = &device->queue;
    atomic_fetch_add(&device->waiting, 1);
    atomic_fetch_sub(&device->launching, 1);
    real.cuCtxGetCurrent(&device->context);
    turn_begin(device, queue->unit);
    atomic_fetch_sub(&device->waiting, 1);
    CUstreamCaptureMode mode;
    pthread_mutex_lock(&queue->lock);
    if (queue->first == queue->next && relax(&mode)) { /* so that the first launch is measured too */
      mark(queue, stream, real.cuEventRecord);
      real.cuThreadExchangeStreamCaptureMode(&mode);
    }
    pthread_mutex_unlock(&queue->lock);
  }
  return device;
}

static void end_launch(struct device *device, CUstream stream, Record record) {
  struct queue *queue = &device->queue;
  atomic_store(&device->last_launch, now_ns());
  atomic_fetch_sub(&device->launching, 1);
  pthread_mutex_lock(&queue->lock);
  queue->unmarked++;
  if (queue->unmarked * queue->unit >= MARK_NS) {
    CUstreamCaptureMode mode;
    atomic_fetch_add(&device->waiting, 1);
    int relaxed = relax(&mode);
    mark(queue, stream, record);
    while (queue->first != queue->next && ahead(queue) - queue->unit > QUEUE_NS) wait_for_mark(queue);
    if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
    atomic_store(&device->last_launch, now_ns());
    atomic_fetch_sub(&device->waiting, 1);
  }
  pthread_mutex_unlock(&queue->lock);
}

#define LAUNCH(stream, ending, call) \
  struct device *device = begin_launch(stream, real.cuStreamIsCapturing##ending); \
  CUresult result = call; \
  if (device) end_launch(device, stream, real.cuEventRecord##ending); \
  return result
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define GRID_ARGS gx, gy, gz, bx, by, bz, shared

HOOK CUresult cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
  LAUNCH(stream, , real.cuLaunchKernel(f, GRID_ARGS, stream, params, extra));
}
HOOK CUresult cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
  LAUNCH(stream, _ptsz, real.cuLaunchKernel_ptsz(f, GRID_ARGS, stream, params, extra));
}
HOOK CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  LAUNCH(config->hStream, , real.cuLaunchKernelEx(config, f, params, extra));
}
HOOK CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  LAUNCH(config->hStream, _ptsz, real.cuLaunchKernelEx_ptsz(config, f, params, extra));
}
HOOK CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params) {
  LAUNCH(stream, , real.cuLaunchCooperativeKernel(f, GRID_ARGS, stream, params));
}
HOOK CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params) {
  LAUNCH(stream, _ptsz, real.cuLaunchCooperativeKernel_ptsz(f, GRID_ARGS, stream, params));
}
HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned number, unsigned flags) {
  LAUNCH(number ? list[0].hStream : NULL, , real.cuLaunchCooperativeKernelMultiDevice(list, number, flags));
}
HOOK CUresult cuLaunch(CUfunction f) { LAUNCH(NULL, , real.cuLaunch(f)); }
HOOK CUresult cuLaunchGrid(CUfunction f, int width, int height) { LAUNCH(NULL, , real.cuLaunchGrid(f, width, height)); }
HOOK CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  LAUNCH(stream, , real.cuLaunchGridAsync(f, width, height, stream));
}
HOOK CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { LAUNCH(stream, , real.cuGraphLaunch(graph, stream)); }
HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  LAUNCH(stream, _ptsz, real.cuGraphLaunch_ptsz(graph, stream));
}
