/* Launches: only within a turn, and never more ahead of the device than a turn can wait for (queue.c).
 *
 * A thread of its own gives back turns that are not used. While the server is gone, launches go on with the part of the card that
 * the container is guaranteed. */
#include "compute.h"

#include <unistd.h>

#include "queue.h"

enum {
  IDLE_MS = 1,            /* without work on the device, while others wait */
  WANTED_LOOK_MS = 1,     /* for whether the device has work */
  HOLDING_LOOK_MS = 4,    /* for others that wait */
  IDLE_LOOK_MS = 50,      /* for a turn to keep; a turn that begins is seen at once */
  TURN_LOOK_MS = 50,      /* while waiting for a turn */
  LAUNCHING_LOOK_US = 20, /* a launch takes a few */
  FIXED_PERIOD_MS = 100,  /* while the server is away */
  LEAST_PPM = 1000,       /* of a container without a guarantee */
};

static struct launches {
  _Atomic int launching; /* threads between the look at the turn and the return of the driver's launch: it is not over before */
  _Atomic int waiting;   /* threads that wait for a turn, or for the device, and are about to launch */
  _Atomic int64_t last_launch;
  int renewing; /* a thread gives the turn that ended for a new one */
  int64_t rests, after; /* since when the device has no work, after which launch; of the thread that keeps turns */
  struct queue queue;
} launches[MAX_DEVICES]; /* by the device's index in the grant */

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int started;

static struct launches *launches_on(const struct device *device) { return &launches[device->index]; }

/* Stop holding the turn, unless a thread launches at this moment; with the connection's lock held. A thread counts as launching
 * before it looks at the turn, so one of the two sees the other. */
static int stop_holding(struct device *device) {
  atomic_store(&device->turn, RELEASING);
  if (!atomic_load(&launches_on(device)->launching)) return 1;
  atomic_store(&device->turn, HOLDING);
  return 0;
}

/* Give back a turn that no thread uses: when the device has had no work for some time while others wait, or when it is over. */
static void release_if_idle(struct device *device) {
  struct launches *on = launches_on(device);
  if (atomic_load(&device->turn) != HOLDING || atomic_load(&on->launching) || atomic_load(&on->waiting)) return;
  turn_end(device);
  if (!atomic_load(&atomic_load(&device->page)->waiters) && turn_lasts(device)) return;
  int64_t launched = atomic_load(&on->last_launch), now = now_ns();
  if (now - launched < IDLE_MS * MS || !queue_is_done(&on->queue)) return;
  if (on->after != launched) on->rests = now, on->after = launched;
  if (now - on->rests < IDLE_MS * MS) return; /* a program that waited for its work is about to launch more */
  link_lock();
  if (link_joined() && atomic_load(&device->turn) == HOLDING && !atomic_load(&on->waiting) && stop_holding(device)) {
    if (atomic_load(&on->last_launch) != launched) atomic_store(&device->turn, HOLDING); /* the device has work again */
    else turn_release(device);
    link_notify();
  }
  link_unlock();
}

/* Return in how many milliseconds to look at the turns again; 0: there is none. */
static int next_look_ms(void) {
  int next = 0;
  for (int i = 0; i < link_devices(); i++) {
    struct device *device = link_device(i);
    if (atomic_load(&device->turn) != HOLDING) continue;
    if (atomic_load(&atomic_load(&device->page)->waiters)) return WANTED_LOOK_MS;
    next = HOLDING_LOOK_MS;
  }
  return next;
}

static void *keep_turns(void *unused) {
  (void)unused;
  for (;;) {
    link_lock();
    int next = next_look_ms();
    if (!next) link_wait(IDLE_LOOK_MS * MS);
    link_unlock();
    usleep((useconds_t)next * 1000);
    for (int i = 0; i < link_devices(); i++) release_if_idle(link_device(i));
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
    on->renewing = 0;
    queue_reset(&on->queue);
  }
}

__attribute__((constructor)) static void prepare(void) {
  reset();
  pthread_atfork(NULL, NULL, reset);
}

/* Wait until the fixed share of this process has time left; with the connection's lock held. A period is as long as it has to be for
 * what was used of it. */
static void fixed_turn(struct device *device) {
  struct page_device *page = atomic_load(&device->page);
  int32_t processes = atomic_load(&page->processes);
  int64_t ppm = page->request_ppm / (processes > 1 ? processes : 1), period = FIXED_PERIOD_MS * MS;
  if (ppm < LEAST_PPM) ppm = LEAST_PPM;
  if (!device->fixed_began) device->fixed_began = now_ns();
  int64_t used = now_ns() - device->fixed_began;
  if (used < period / 1000000 * ppm) return;
  link_unlock();
  queue_drain(&launches_on(device)->queue);
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
  queue_drain(&on->queue);
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
  for (int i = 0; i < MAX_DEVICES; i++) queue_forget(&launches[i].queue, context);
}

/* Return the device if the launch needs a turn, after it has one; NULL if it needs none: captured, it is a node of a graph. */
static struct device *begin_launch(CUstream stream, int captured, Record record) {
  struct device *device = captured ? NULL : device_of_thread();
  if (!device) return NULL;
  struct launches *on = launches_on(device);
  atomic_fetch_add(&on->launching, 1); /* before the look: one that gives the turn back looks at this after it did */
  if (!LIKELY(atomic_load(&device->turn) == HOLDING && turn_lasts(device))) {
    atomic_fetch_add(&on->waiting, 1);
    atomic_fetch_sub(&on->launching, 1);
    begin_turn(device, on->queue.length);
    atomic_fetch_sub(&on->waiting, 1);
    queue_begin(&on->queue, stream, record);
  }
  return device;
}

/* Count a launch that the driver took. A thread that gives the turn back waits until the launch is in the queue. */
static void end_launch(struct device *device, CUstream stream, Record record, uint16_t kind, CUresult result) {
  struct launches *on = launches_on(device);
  int full = !result && queue_add(&on->queue, stream, record, kind);
  atomic_store(&on->last_launch, now_ns());
  if (full) atomic_fetch_add(&on->waiting, 1);
  atomic_fetch_sub(&on->launching, 1);
  if (!full) return;
  queue_wait(&on->queue);
  atomic_store(&on->last_launch, now_ns());
  atomic_fetch_sub(&on->waiting, 1);
}

#define LAUNCH(stream, ending, kind, call) \
  struct device *device = begin_launch(stream, is_captured##ending(stream), real.cuEventRecord##ending); \
  CUresult result = call; \
  if (device) end_launch(device, stream, real.cuEventRecord##ending, kind, result); \
  return result
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define GRID_ARGS gx, gy, gz, bx, by, bz, shared
#define GRID_KIND kind_of(f, (uint64_t)gx * gy * gz)
#define AREA_KIND kind_of(f, (uint64_t)width * (uint64_t)height)
#define CONFIG_KIND kind_of(f, config ? (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ : 0)

HOOK CUresult cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
  LAUNCH(stream, , GRID_KIND, real.cuLaunchKernel(f, GRID_ARGS, stream, params, extra));
}
HOOK CUresult cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
  LAUNCH(stream, _ptsz, GRID_KIND, real.cuLaunchKernel_ptsz(f, GRID_ARGS, stream, params, extra));
}
HOOK CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  LAUNCH(config ? config->hStream : NULL, , CONFIG_KIND, real.cuLaunchKernelEx(config, f, params, extra));
}
HOOK CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  LAUNCH(config ? config->hStream : NULL, _ptsz, CONFIG_KIND, real.cuLaunchKernelEx_ptsz(config, f, params, extra));
}
HOOK CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params) {
  LAUNCH(stream, , GRID_KIND, real.cuLaunchCooperativeKernel(f, GRID_ARGS, stream, params));
}
HOOK CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params) {
  LAUNCH(stream, _ptsz, GRID_KIND, real.cuLaunchCooperativeKernel_ptsz(f, GRID_ARGS, stream, params));
}
HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned number, unsigned flags) {
  LAUNCH(list && number ? list[0].hStream : NULL, , kind_of(list && number ? list[0].function : NULL, number),
         real.cuLaunchCooperativeKernelMultiDevice(list, number, flags));
}
HOOK CUresult cuLaunch(CUfunction f) { LAUNCH(NULL, , kind_of(f, 1), real.cuLaunch(f)); }
HOOK CUresult cuLaunchGrid(CUfunction f, int width, int height) {
  LAUNCH(NULL, , AREA_KIND, real.cuLaunchGrid(f, width, height));
}
HOOK CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  LAUNCH(stream, , AREA_KIND, real.cuLaunchGridAsync(f, width, height, stream));
}
CUresult launch_graph(CUgraphExec graph, CUstream stream) {
  LAUNCH(stream, , kind_of(graph, 0), real.cuGraphLaunch(graph, stream));
}
CUresult launch_graph_ptsz(CUgraphExec graph, CUstream stream) {
  LAUNCH(stream, _ptsz, kind_of(graph, 0), real.cuGraphLaunch_ptsz(graph, stream));
}
