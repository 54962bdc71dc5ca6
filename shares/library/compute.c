/* Launches: within a turn, or as a guest beside another container's turn, and never far ahead of the device (queue.c).
 *
 * A turn ends by the clock: work that is queued then runs on, and counts as used outside it (account.c). A thread of its own gives
 * back turns that are not used, and reports. While the server is gone, launches go on with the part of the card that the
 * container is guaranteed. */
#include "compute.h"

#include <unistd.h>

#include "account.h"
#include "queue.h"

#define QUEUE_NS (10 * MS)      /* greatest work that is queued on the device, besides one launch */
#define SHARED_QUEUE_NS (MS / 2) /* the same while other containers use the device */
#define LONG_NS (2 * MS)        /* a longer launch has to fit into the rest of the turn */
#define REPORT_NS MS            /* use outside turns that is reported at once */
#define OWN_PAUSE_NS (3 * MS / 10) /* a program that paused for so long after its last two synchronisations is to pause again */
enum {
  IDLE_MS = 1,          /* time without work after which a turn is given back while others wait */
  PAUSING_LOOK_US = 100, /* interval of looks for the end of a burst that pauses the holder */
  WANTED_LOOK_MS = 1,   /* interval of looks whether the device has work */
  HOLDING_LOOK_MS = 4,  /* interval of looks for other containers that wait */
  IDLE_LOOK_MS = 50,    /* interval of looks for a turn; a turn that begins is seen at once */
  TURN_LOOK_MS = 50,    /* interval of looks while a thread waits for a turn */
  PAUSED_LOOK_US = 50,  /* interval of looks while a guest pauses this process */
  REPORT_MS = 100,      /* longest time between two reports of use */
  FIXED_PERIOD_MS = 100, /* period of the fixed share while the server is away */
  LEAST_PPM = 1000,     /* part of the card of a container without a guarantee */
};
enum mode { IN_TURN, GUEST, FIXED };

static struct launches {
  _Atomic int waiting; /* threads that wait for a turn, or for the device, and are about to launch */
  _Atomic int64_t last_launch;
  _Atomic int64_t synchronised; /* when a call returned that waits for the device; 0: a launch followed */
  _Atomic int64_t pause, pause_before; /* times between the last two such calls and the next launches */
  int64_t rests, after;  /* since when the device has no work, after which launch; of the thread that keeps turns */
  _Atomic uint32_t paused; /* number of the last pause that was waited for */
  struct account account;
  struct queue queue;
} launches[MAX_DEVICES]; /* by the device's index in the grant */

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int started;

/* Return the device of the calling thread's context; NULL if launches on it need no turn. */
static struct device *device_with_turns(void) {
  struct device *device = device_of_thread();
  return device && atomic_load_explicit(&device->takes_turns, memory_order_relaxed) ? device : NULL;
}

static struct launches *launches_on(const struct device *device) { return &launches[device->index]; }

/* Return this process's part of a rate of the container. */
static int64_t part_of(struct device *device, int64_t ppm) {
  int32_t processes = atomic_load(&atomic_load(&device->page)->processes);
  return ppm / (processes > 1 ? processes : 1);
}

/* Return whether a launch of this length may be made in the turn: a long one has to fit, unless it is a little longer than expected. */
static int in_turn(struct device *device, int64_t length) {
  if (atomic_load(&device->turn) != HOLDING) return 0;
  int64_t left = turn_left(device);
  return length <= LONG_NS ? left > 0 : left > length / 4 * 3;
}

static int is_paused(struct device *device) {
  uint32_t pause = atomic_load_explicit(&atomic_load(&device->page)->pause, memory_order_relaxed);
  return pause && pause != atomic_load_explicit(&launches_on(device)->paused, memory_order_relaxed);
}

/* Wait until the pause is over, for PAUSE_NS at most. */
static void wait_out_pause(struct device *device) {
  uint32_t pause = atomic_load(&atomic_load(&device->page)->pause);
  int64_t until = now_ns() + PAUSE_NS;
  while (pause && atomic_load(&atomic_load(&device->page)->pause) == pause && now_ns() < until) usleep(PAUSED_LOOK_US);
  atomic_store(&launches_on(device)->paused, pause);
}

/* Report the use outside turns, if it is this much; with the connection's lock held. */
static void report(struct device *device, int64_t least) {
  int64_t used = account_report(&launches_on(device)->account, now_ns(), least, REPORT_MS * MS);
  if (used) turn_use(device, used, 0);
}

/* Count what the last turn left, or this one if it is about to be given back. */
static void count_rest(struct device *device) {
  struct launches *on = launches_on(device);
  int64_t over = turn_over(device);
  int64_t more = atomic_exchange(&on->queue.more, 0);
  if (more) account_correct(&on->account, more);
  account_rest(&on->account, now_ns(), over > 0 ? over : 0);
}

/* Return all use that is not reported. */
static int64_t take_used(struct device *device) {
  count_rest(device);
  return account_report(&launches_on(device)->account, now_ns(), 0, 0);
}

/* Give the turn back, unless a thread is about to use it. */
static void release(struct device *device) {
  link_lock();
  if (link_joined() && atomic_load(&device->turn) == HOLDING && !atomic_load(&launches_on(device)->waiting)) {
    turn_release(device, take_used(device));
  }
  link_unlock();
}

/* Give back a turn that no thread uses: when the device has had no work for some time while others wait, or when it is over. */
static void release_if_idle(struct device *device) {
  struct launches *on = launches_on(device);
  if (atomic_load(&device->turn) != HOLDING || atomic_load(&on->waiting)) return;
  if (!atomic_load(&atomic_load(&device->page)->waiters) && turn_left(device)) return;
  int64_t launched = atomic_load(&on->last_launch), now = now_ns();
  if (now - launched < IDLE_MS * MS || !queue_is_done(&on->queue)) return;
  if (on->after != launched) on->rests = now, on->after = launched;
  if (now - on->rests < IDLE_MS * MS) return; /* a program that waited for its work is about to launch more */
  release(device);
}

/* Give back the turn at once if a call that waits for the device has returned, others wait, and the program is likely to pause. */
static CUresult synchronised(CUresult result) {
  struct device *device = result ? NULL : device_with_turns();
  if (!device) return result;
  struct launches *on = launches_on(device);
  int64_t now = now_ns();
  atomic_store_explicit(&on->synchronised, now, memory_order_relaxed);
  if (turn_over(device) > 0 && queue_is_done(&on->queue)) account_ended(&on->account, now);
  if (atomic_load(&device->turn) != HOLDING || !atomic_load(&atomic_load(&device->page)->waiters)) return result;
  int pauses = atomic_load(&on->pause) >= OWN_PAUSE_NS && atomic_load(&on->pause_before) >= OWN_PAUSE_NS;
  if (pauses && !atomic_load(&on->waiting) && queue_is_done(&on->queue)) release(device);
  return result;
}

/* Note how long the program paused if this is the first launch after a synchronisation. */
static void note_pause(struct launches *on) {
  int64_t since = atomic_load_explicit(&on->synchronised, memory_order_relaxed);
  if (LIKELY(!since)) return;
  atomic_store(&on->pause_before, atomic_load(&on->pause));
  atomic_store(&on->pause, now_ns() - since);
  atomic_store(&on->synchronised, 0);
}

/* Report use, or end the pause of the holder when this process's burst of work is over. */
static void report_or_end_pause(struct device *device) {
  struct launches *on = launches_on(device);
  int pauses = on->account.paused != 0;
  if (pauses && !account_ends_pause(&on->account, now_ns(), !atomic_load(&on->waiting) && queue_is_done(&on->queue))) return;
  link_lock();
  if (pauses) turn_use(device, account_report(&on->account, now_ns(), 0, 0), 0);
  else report(device, REPORT_NS);
  link_unlock();
}

/* Return in how many microseconds to look at the turns again; 0: there is nothing to look at. */
static int64_t next_look_us(void) {
  int64_t next = 0;
  for (int i = 0; i < link_devices(); i++) {
    struct device *device = link_device(i);
    if (launches[i].account.paused) return PAUSING_LOOK_US;
    if (atomic_load(&device->turn) != HOLDING) continue;
    int64_t look = (atomic_load(&atomic_load(&device->page)->waiters) ? WANTED_LOOK_MS : HOLDING_LOOK_MS) * 1000;
    next = next && next < look ? next : look;
  }
  return next;
}

static void *keep_turns(void *unused) {
  (void)unused;
  for (;;) {
    link_lock();
    int64_t next = next_look_us();
    if (!next) link_wait(IDLE_LOOK_MS * MS);
    link_unlock();
    if (next) usleep((useconds_t)next);
    for (int i = 0; i < link_devices(); i++) {
      release_if_idle(link_device(i));
      report_or_end_pause(link_device(i));
    }
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
    atomic_store(&launches[i].waiting, 0);
    atomic_store(&launches[i].synchronised, 0);
    account_reset(&launches[i].account);
    queue_reset(&launches[i].queue);
  }
}

__attribute__((constructor)) static void prepare(void) {
  reset();
  pthread_atfork(NULL, NULL, reset);
}

/* Wait until the fixed share of this process has time left; with the connection's lock held. A period is as long as it has to be for
 * what was used of it. */
static void fixed_turn(struct device *device) {
  int64_t ppm = part_of(device, atomic_load(&device->page)->request_ppm), period = FIXED_PERIOD_MS * MS;
  if (ppm < LEAST_PPM) ppm = LEAST_PPM;
  if (!device->fixed_began) device->fixed_began = now_ns();
  atomic_store(&launches_on(device)->queue.more, 0); /* the server counts nothing */
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

/* Return whether the process may launch outside a turn now, and pause the holder for it if it was idle; with the connection's lock
 * held. */
static int is_guest(struct device *device, int64_t length) {
  struct account *account = &launches_on(device)->account;
  int pause = 0;
  if (!turn_takes_use() || atomic_load(&device->turn) == WANTING) return 0;
  count_rest(device);
  if (!account_guest(account, now_ns(), length, has_neighbours(device), &pause)) return 0;
  if (pause) {
    turn_use(device, account_report(account, now_ns(), 0, 0), 1);
    link_notify(); /* the thread that ends the pause */
  }
  return 1;
}

/* Wait until the device may be used, and return how. */
static enum mode wait_for_device(struct device *device, int64_t length) {
  struct launches *on = launches_on(device);
  enum mode mode = FIXED;
  int waited = 0;
  atomic_fetch_add(&on->waiting, 1);
  account_grow(&on->account, now_ns(), part_of(device, atomic_load(&device->page)->request_ppm));
  link_lock();
  for (;; waited = 1) {
    if (!link_joined()) {
      fixed_turn(device);
      if (!link_joined()) break;
    } else if (in_turn(device, length)) {
      mode = IN_TURN;
      break;
    } else if (is_guest(device, length)) {
      mode = GUEST;
      break;
    } else {
      if (atomic_load(&device->turn) != WANTING) turn_want(device, length, take_used(device));
      link_wait(TURN_LOOK_MS * MS);
    }
  }
  link_unlock();
  if (waited) account_waited(&on->account, now_ns());
  atomic_fetch_sub(&on->waiting, 1);
  return mode;
}

void forget_launch_context(CUcontext context) {
  for (int i = 0; i < MAX_DEVICES; i++) queue_forget(&launches[i].queue, context);
}

/* A launch that waits for nothing more. */
struct launch {
  struct device *device; /* NULL: it needs no turn. It is captured, a node of a graph, or the device takes none */
  enum mode mode;
  uint16_t kind;
  int64_t began; /* before the call: afterwards the device may have been at work for a while */
};

/* Return the launch when it may be made. */
static struct launch begin_launch(CUstream stream, int captured, Record record, uint16_t kind) {
  struct launch launch = {captured ? NULL : device_with_turns(), IN_TURN, kind, 0};
  if (!launch.device) return launch;
  struct launches *on = launches_on(launch.device);
  note_pause(on);
  int64_t length = queue_length(&on->queue, kind);
  if (!LIKELY(in_turn(launch.device, length) && !is_paused(launch.device))) {
    if (is_paused(launch.device)) wait_out_pause(launch.device);
    if (!in_turn(launch.device, length)) launch.mode = wait_for_device(launch.device, length);
    queue_begin(&on->queue, stream, record);
  }
  launch.began = now_ns();
  return launch;
}

/* Return how much work may be queued on the device, besides a launch of this length if it is short. */
static int64_t most_queued(struct device *device, int64_t length) {
  if (!has_neighbours(device)) return QUEUE_NS + length;
  return SHARED_QUEUE_NS + (length <= LONG_NS ? length : 0);
}

/* Count a launch that the driver took, and wait while too much work is queued. */
static void end_launch(struct launch launch, CUstream stream, Record record) {
  struct launches *on = launches_on(launch.device);
  int neighbours = has_neighbours(launch.device);
  int64_t length = queue_length(&on->queue, launch.kind), most = most_queued(launch.device, length);
  int full = queue_add(&on->queue, stream, record, launch.kind, launch.began, launch.mode == GUEST && neighbours, most);
  int64_t now = now_ns();
  atomic_store(&on->last_launch, now);
  if (launch.mode != FIXED) account_launch(&on->account, now, length, launch.mode == IN_TURN, neighbours);
  if (launch.mode == GUEST && neighbours && on->account.used >= REPORT_NS && !on->account.paused) {
    link_lock();
    report(launch.device, REPORT_NS);
    link_unlock();
  }
  if (!full) return;
  atomic_fetch_add(&on->waiting, 1);
  queue_wait(&on->queue, most);
  now = now_ns();
  if (queue_is_done(&on->queue)) account_ended(&on->account, now);
  atomic_store(&on->last_launch, now);
  atomic_fetch_sub(&on->waiting, 1);
}

#define LAUNCH(stream, ending, kind, call) \
  struct launch launch = begin_launch(stream, is_captured##ending(stream), real.cuEventRecord##ending, kind); \
  CUresult result = call; \
  if (launch.device && !result) end_launch(launch, stream, real.cuEventRecord##ending); \
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

HOOK CUresult cuCtxSynchronize(void) { return synchronised(real.cuCtxSynchronize()); }
HOOK CUresult cuStreamSynchronize(CUstream stream) { return synchronised(real.cuStreamSynchronize(stream)); }
HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream) { return synchronised(real.cuStreamSynchronize_ptsz(stream)); }
HOOK CUresult cuEventSynchronize(CUevent event) { return synchronised(real.cuEventSynchronize(event)); }
