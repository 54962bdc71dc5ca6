/* Launches: only within a turn, and never more ahead of the device than a turn can wait for.
 *
 * A turn says nothing if a program can queue seconds of work within it. So marks (events) are put between launches, and a launch
 * waits while more than QUEUE_NS of work is not done. How long a launch takes is learned from the marks.
 *
 * A thread of its own gives back turns that are not used, and waits for the device to do so. While the server is gone, launches go
 * on with the part of the card that the container is guaranteed. */
#include "compute.h"

#include <unistd.h>

#include "driver.h"

#define QUEUE_NS (10 * MS) /* of work that is queued on the device at most, besides one launch */
#define MARK_NS (2 * MS)   /* of work between two marks */
#define FIRST_UNIT_NS (10 * MS)
enum {
  MARKS = 16,
  LEAST_UNIT_NS = 1000,
  IDLE_MS = 2,            /* without a launch, while others wait */
  HOLDING_LOOK_MS = 4,    /* for those others */
  IDLE_LOOK_MS = 50,      /* for a turn to keep */
  TURN_LOOK_MS = 50,      /* while waiting for a turn */
  DONE_US = 500,          /* after work that was waited for; a program that synchronises launches again in less */
  LAUNCHING_LOOK_US = 20, /* a launch takes a few */
  FIXED_PERIOD_MS = 100,  /* while the server is away */
  LEAST_PPM = 1000,       /* of a container without a guarantee */
};

/* The work that is queued on a device. */
struct queue {
  pthread_mutex_t lock;
  struct {
    CUevent event;
    int launches;
    int follows; /* the one before was not done when this was recorded: the time between them is that of the launches */
  } marks[MARKS];
  unsigned first, next; /* marks that are not done */
  int unmarked;         /* launches since the last mark */
  int64_t unit;         /* time of a launch, as learned */
};

static struct launches {
  _Atomic int launching; /* threads between the look at the turn and the return of the driver's launch: it is not over before */
  _Atomic int waiting;   /* threads that wait for a turn, or for the device, and are about to launch */
  _Atomic int64_t last_launch;
  CUcontext context; /* the last one that launched */
  int renewing;      /* a thread gives the turn that ended for a new one */
  struct queue queue;
} launches[MAX_DEVICES]; /* by the device's index in the grant */

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int started;

static struct launches *launches_on(const struct device *device) { return &launches[device->index]; }

static void reset_queue(struct queue *queue) {
  pthread_mutex_init(&queue->lock, NULL);
  for (int i = 0; i < MARKS; i++) queue->marks[i].event = NULL;
  queue->first = queue->next = 0;
  queue->unmarked = 0;
  queue->unit = FIRST_UNIT_NS;
}

static void forget_marks(struct queue *queue) {
  queue->first = queue->next;
  queue->unmarked = 0;
}

/* Wait until the device has done the work of the context that launched last. */
static void drain(struct launches *on) {
  CUcontext context = on->context, before = NULL;
  CUstreamCaptureMode mode;
  if (!context) return;
  real.cuCtxGetCurrent(&before);
  if (before != context) real.cuCtxSetCurrent(context);
  int relaxed = relax(&mode);
  real.cuCtxSynchronize();
  if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
  if (before != context) real.cuCtxSetCurrent(before);
  pthread_mutex_lock(&on->queue.lock);
  forget_marks(&on->queue);
  pthread_mutex_unlock(&on->queue.lock);
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

/* Stop holding the turn, unless a thread launches at this moment; with the connection's lock held. A thread counts as launching
 * before it looks at the turn, so one of the two sees the other. */
static int stop_holding(struct device *device) {
  atomic_store(&device->turn, RELEASING);
  if (!atomic_load(&launches_on(device)->launching)) return 1;
  atomic_store(&device->turn, HOLDING);
  return 0;
}

/* Give back a turn that no thread uses: after some time without a launch while others wait, or when it is over. */
static void release_if_idle(struct device *device) {
  struct launches *on = launches_on(device);
  if (atomic_load(&device->turn) != HOLDING || atomic_load(&on->launching) || atomic_load(&on->waiting)) return;
  turn_end(device);
  if (!atomic_load(&atomic_load(&device->page)->waiters) && turn_lasts(device)) return;
  int64_t launched = atomic_load(&on->last_launch);
  if (now_ns() - launched < IDLE_MS * MS) return;
  int64_t began = now_ns();
  drain(on); /* the server waits for our word: the work is charged to us */
  if (now_ns() - began > DONE_US * 1000) usleep(DONE_US); /* one that waited for its work too is about to launch more */
  link_lock();
  if (link_joined() && atomic_load(&device->turn) == HOLDING && !atomic_load(&on->waiting) && stop_holding(device)) {
    if (atomic_load(&on->last_launch) != launched) atomic_store(&device->turn, HOLDING); /* not all that was launched is drained */
    else turn_release(device);
    link_notify();
  }
  link_unlock();
}

static void *keep_turns(void *unused) {
  (void)unused;
  for (;;) {
    int holds = 0;
    for (int i = 0; i < link_devices(); i++) {
      release_if_idle(link_device(i));
      holds |= atomic_load(&link_device(i)->turn) == HOLDING;
    }
    usleep((holds ? HOLDING_LOOK_MS : IDLE_LOOK_MS) * 1000);
  }
  return NULL;
}

int turns_up(void) {
  pthread_mutex_lock(&starting);
  if (!started) started = start_thread(keep_turns);
  int up = started;
  pthread_mutex_unlock(&starting);
  return up;
}

/* A child of fork has no turn and no thread: CUDA starts anew there, and so does this. */
static void reset(void) {
  pthread_mutex_init(&starting, NULL);
  started = 0;
  for (int i = 0; i < MAX_DEVICES; i++) {
    struct launches *on = &launches[i];
    atomic_store(&on->launching, 0);
    atomic_store(&on->waiting, 0);
    on->context = NULL;
    on->renewing = 0;
    reset_queue(&on->queue);
  }
}

__attribute__((constructor)) static void prepare(void) {
  reset();
  pthread_atfork(NULL, NULL, reset);
}

/* Wait until the fixed share has time left; with the connection's lock held. A period is as long as it has to be for what was used
 * of it. */
static void fixed_turn(struct device *device) {
  int64_t ppm = atomic_load(&device->page)->request_ppm, period = FIXED_PERIOD_MS * MS;
  if (ppm < LEAST_PPM) ppm = LEAST_PPM;
  if (!device->fixed_began) device->fixed_began = now_ns();
  int64_t used = now_ns() - device->fixed_began;
  if (used < period / 1000000 * ppm) return;
  link_unlock();
  drain(launches_on(device));
  link_lock();
  used = now_ns() - device->fixed_began;
  int64_t next = device->fixed_began + used * 1000000 / ppm;
  while (!link_joined() && now_ns() < next) link_wait(next - now_ns());
  device->fixed_began = link_joined() ? 0 : now_ns();
}

/* Exchange a turn that ended for a new one, when no thread launches and the work is done; with the connection's lock held. */
static void renew_turn(struct device *device, int64_t estimate) {
  struct launches *on = launches_on(device);
  on->renewing = 1;
  link_unlock();
  while (atomic_load(&on->launching)) usleep(LAUNCHING_LOOK_US); /* threads that looked at the turn before its end */
  drain(on);
  link_lock();
  on->renewing = 0;
  if (link_joined() && atomic_load(&device->turn) == HOLDING && !turn_lasts(device) && stop_holding(device)) {
    turn_want(device, estimate, turn_late(device));
  }
  link_notify();
}

/* Return when the device may be used: with a turn, or by the fixed share while the server is away. The thread counts as launching
 * from then on. */
static void begin_turn(struct device *device, int64_t estimate) {
  struct launches *on = launches_on(device);
  link_lock();
  for (;;) {
    int turn = atomic_load(&device->turn);
    if (!link_joined()) {
      fixed_turn(device);
      if (!link_joined()) break;
    } else if (turn == HOLDING && turn_lasts(device)) {
      break;
    } else if (turn == HOLDING && !on->renewing) {
      renew_turn(device, estimate);
    } else if (turn == IDLE) {
      turn_want(device, estimate, 0);
    } else {
      link_wait(TURN_LOOK_MS * MS);
    }
  }
  atomic_fetch_add(&on->launching, 1);
  link_unlock();
}

void forget_launch_context(CUcontext context) {
  for (int i = 0; i < MAX_DEVICES; i++) {
    if (launches[i].context == context) launches[i].context = NULL;
  }
}

/* Return the device if the launch needs a turn, after it has one; NULL if it needs none: captured, it is a node of a graph. */
static struct device *begin_launch(CUstream stream, int captured, Record record) {
  struct device *device = captured ? NULL : device_of_thread();
  if (!device) return NULL;
  struct launches *on = launches_on(device);
  atomic_fetch_add(&on->launching, 1); /* before the look: one that gives the turn back looks at this after it did */
  if (!LIKELY(atomic_load(&device->turn) == HOLDING && turn_lasts(device))) {
    struct queue *queue = &on->queue;
    atomic_fetch_add(&on->waiting, 1);
    atomic_fetch_sub(&on->launching, 1);
    real.cuCtxGetCurrent(&on->context);
    begin_turn(device, queue->unit);
    atomic_fetch_sub(&on->waiting, 1);
    CUstreamCaptureMode mode;
    pthread_mutex_lock(&queue->lock);
    if (queue->first == queue->next && relax(&mode)) { /* so that the first launch is measured too */
      mark(queue, stream, record);
      real.cuThreadExchangeStreamCaptureMode(&mode);
    }
    pthread_mutex_unlock(&queue->lock);
  }
  return device;
}

static void end_launch(struct device *device, CUstream stream, Record record) {
  struct launches *on = launches_on(device);
  struct queue *queue = &on->queue;
  atomic_store(&on->last_launch, now_ns());
  atomic_fetch_sub(&on->launching, 1);
  pthread_mutex_lock(&queue->lock);
  queue->unmarked++;
  if (queue->unmarked * queue->unit >= MARK_NS) {
    CUstreamCaptureMode mode;
    atomic_fetch_add(&on->waiting, 1);
    int relaxed = relax(&mode);
    mark(queue, stream, record);
    while (queue->first != queue->next && ahead(queue) - queue->unit > QUEUE_NS) wait_for_mark(queue);
    if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
    atomic_store(&on->last_launch, now_ns());
    atomic_fetch_sub(&on->waiting, 1);
  }
  pthread_mutex_unlock(&queue->lock);
}

#define LAUNCH(stream, ending, call) \
  struct device *device = begin_launch(stream, is_captured##ending(stream), real.cuEventRecord##ending); \
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
  LAUNCH(config ? config->hStream : NULL, , real.cuLaunchKernelEx(config, f, params, extra));
}
HOOK CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  LAUNCH(config ? config->hStream : NULL, _ptsz, real.cuLaunchKernelEx_ptsz(config, f, params, extra));
}
HOOK CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params) {
  LAUNCH(stream, , real.cuLaunchCooperativeKernel(f, GRID_ARGS, stream, params));
}
HOOK CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params) {
  LAUNCH(stream, _ptsz, real.cuLaunchCooperativeKernel_ptsz(f, GRID_ARGS, stream, params));
}
HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned number, unsigned flags) {
  LAUNCH(list && number ? list[0].hStream : NULL, , real.cuLaunchCooperativeKernelMultiDevice(list, number, flags));
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
