/* The work that this process has queued on a device.
 *
 * No call here ends a capture of a stream (CUDA ends captures for calls of any thread, by the capture's mode): a thread records
 * events on the stream of its own launch only, right behind it, and looks at events in relaxed mode. cuCtxSynchronize and
 * cuStreamSynchronize end captures in every mode, or need a stream that may have ended or begun a capture. */
#include "queue.h"

#include <unistd.h>

#define MARK_NS (2 * MS) /* greatest work, and time, between two marks */
#define FIRST_UNIT_NS (10 * MS)
#define MUCH_NS (2 * MS) /* beyond twice the expected, work of others and gaps between launches do not explain the time */
enum {
  LEAST_UNIT_NS = 1000,
  LONGEST_UNIT_NS = INT32_MAX,
  PATIENCE_MS = 1000, /* longest wait for a mark */
  LOOK_US = 20,       /* between two looks at a mark that is waited for */
};

/* The thread's state while the library makes calls of its own. */
struct calls {
  CUcontext before;
  int relaxed;
  CUstreamCaptureMode mode;
};

static struct calls begin_calls(void) {
  struct calls calls = {0};
  calls.relaxed = relax(&calls.mode);
  real.cuCtxGetCurrent(&calls.before);
  return calls;
}

static void end_calls(struct calls *calls) {
  CUcontext now = NULL;
  real.cuCtxGetCurrent(&now);
  if (now != calls->before) real.cuCtxSetCurrent(calls->before);
  if (calls->relaxed) real.cuThreadExchangeStreamCaptureMode(&calls->mode);
}

static int64_t bounded(int64_t unit) {
  return unit < LEAST_UNIT_NS ? LEAST_UNIT_NS : unit > LONGEST_UNIT_NS ? LONGEST_UNIT_NS : unit;
}

/* Learn from the time that the launches of a segment took together, or at most. What was expected of them when they were made does not
 * matter: other segments may have changed that since. */
static void learn(struct queue *queue, const struct segment *segment, int64_t took, int is_most) {
  if (segment->unknown) { /* a mark follows a launch of a new kind at once, so that it is the last */
    int32_t *unit = &queue->units[segment->kinds[segment->launches - 1]];
    if (!*unit) *unit = (int32_t)bounded(took - (segment->expected - FIRST_UNIT_NS));
    return;
  }
  int64_t expected = 0;
  for (int i = 0; i < segment->launches; i++) expected += queue->units[segment->kinds[i]];
  if (!expected || ((segment->shared || is_most) && took > expected)) return;
  double by = ((double)took / (double)expected + 1) / 2; /* half-way to what was measured */
  for (int i = 0; i < segment->launches; i++) {
    int32_t *unit = &queue->units[segment->kinds[i]];
    int seen = 0;
    for (int before = 0; before < i && !seen; before++) seen = segment->kinds[before] == segment->kinds[i];
    if (!seen && *unit) *unit = (int32_t)bounded((int64_t)(*unit * by));
  }
}

/* Return the time between a mark, which is done, and the one before it; -1 if it is not known. */
static int64_t time_before(const struct queue *queue, unsigned at) {
  unsigned before = (at + MARKS - 1) % MARKS;
  float ms;
  if (!queue->marks[before].event || queue->marks[before].context != queue->marks[at].context) return -1;
  return real.cuEventElapsedTime(&ms, queue->marks[before].event, queue->marks[at].event) ? -1 : (int64_t)(ms * 1e6);
}

/* Take the first mark, which is done. Of launches that found the device at rest, only the most that they can have taken is known:
 * they were neither begun before the program made them nor before the mark before. */
static void take_first(struct queue *queue) {
  unsigned at = queue->first % MARKS;
  const struct segment *segment = &queue->marks[at].segment;
  int follows = queue->marks[at].follows;
  if (segment->launches) {
    int64_t most = now_ns() - segment->began;
    /* Launches without a pause between them have filled the segment: the two times are the same. */
    int64_t took = follows || segment->launches < MOST_UNMARKED ? time_before(queue, at) : -1;
    if (took >= 0 && follows) {
      if (took > 2 * segment->expected + MUCH_NS) atomic_fetch_add(&queue->more, took - segment->expected);
      learn(queue, segment, took, 0);
    } else {
      learn(queue, segment, took >= 0 && took < most ? took : most, 1);
    }
  }
  queue->first++;
}

/* Return the driver's answer about a mark: CUDA_SUCCESS if it is done. A mark that was forgotten is done. */
static CUresult query(const struct queue *queue, unsigned at) {
  if (!queue->marks[at].event) return CUDA_SUCCESS;
  real.cuCtxSetCurrent(queue->marks[at].context);
  return real.cuEventQuery(queue->marks[at].event);
}

/* Return for how long the work of the segment should go on. */
static int64_t left_of(const struct segment *segment) { return segment->began + segment->expected - now_ns(); }

/* Wait no longer for the first mark: its work counts once it is done. Of several such marks, the last one counts. */
static void set_first_aside(struct queue *queue) {
  unsigned at = queue->first % MARKS;
  const struct segment *segment = &queue->marks[at].segment;
  int64_t passed = now_ns() - segment->began - segment->expected;
  if (passed > 0) atomic_fetch_add(&queue->more, passed);
  if (queue->late) {
    real.cuCtxSetCurrent(queue->late_context);
    real.cuEventDestroy_v2(queue->late);
  }
  queue->late = queue->marks[at].event;
  queue->late_context = queue->marks[at].context;
  queue->late_from = now_ns();
  queue->marks[at].event = NULL;
  queue->first++;
}

static void take_late(struct queue *queue) {
  if (!queue->late) return;
  real.cuCtxSetCurrent(queue->late_context);
  if (real.cuEventQuery(queue->late) == CUDA_ERROR_NOT_READY) return;
  atomic_fetch_add(&queue->more, now_ns() - queue->late_from);
  real.cuEventDestroy_v2(queue->late);
  queue->late = NULL;
}

/* Take the marks that are done. One that the driver refuses to look at counts as done after its expected time. */
static void take_done(struct queue *queue) {
  take_late(queue);
  while (queue->first != queue->next) {
    unsigned at = queue->first % MARKS;
    CUresult result = query(queue, at);
    if (!result) take_first(queue);
    else if (result == CUDA_ERROR_NOT_READY || left_of(&queue->marks[at].segment) > 0) return;
    else queue->first++;
  }
}

/* Wait for the first mark, for PATIENCE_MS at most: a kernel may wait for the program, or for a later launch. If the driver refuses
 * to look at the mark, wait for its expected time. */
static void wait_for_first(struct queue *queue) {
  unsigned at = queue->first % MARKS;
  int64_t until = now_ns() + PATIENCE_MS * MS;
  CUresult result;
  while ((result = query(queue, at)) == CUDA_ERROR_NOT_READY && now_ns() < until) usleep(LOOK_US);
  if (!result) {
    take_first(queue);
    return;
  }
  if (result == CUDA_ERROR_NOT_READY) {
    set_first_aside(queue);
    return;
  }
  int64_t left = left_of(&queue->marks[at].segment);
  if (left > 0) usleep((useconds_t)(left / 1000));
  queue->first++;
}

static int64_t ahead(const struct queue *queue) {
  int64_t expected = queue->tail.expected;
  for (unsigned i = queue->first; i != queue->next; i++) expected += queue->marks[i % MARKS].segment.expected;
  return expected;
}

/* Put a mark behind the tail, on the stream of the thread's own launch, which is of this context. */
static void put_mark(struct queue *queue, CUcontext context, CUstream stream, Record record) {
  take_done(queue);
  if (queue->next - queue->first == MARKS - 1) wait_for_first(queue); /* the one before the first is still compared with */
  unsigned at = queue->next % MARKS, before = (queue->next + MARKS - 1) % MARKS;
  CUevent *event = &queue->marks[at].event;
  real.cuCtxSetCurrent(context); /* looks at marks of other contexts have changed it */
  if (*event && queue->marks[at].context != context) { /* an event belongs to one context */
    real.cuEventDestroy_v2(*event);
    *event = NULL;
  }
  queue->marks[at].context = context;
  if ((*event || !real.cuEventCreate(event, 0)) && !record(*event, stream)) {
    queue->marks[at].follows = queue->next != queue->first && queue->marks[before].context == context;
    queue->marks[at].segment = queue->tail;
    queue->next++;
    queue->tail = (struct segment){0};
    queue->marked = now_ns();
  } else if (queue->tail.launches == MOST_UNMARKED) {
    queue->tail.launches = 0; /* they are waited for by their expected time, which still counts */
  }
}

void queue_reset(struct queue *queue) {
  pthread_mutex_init(&queue->lock, NULL);
  for (int i = 0; i < MARKS; i++) queue->marks[i].event = NULL;
  queue->first = queue->next = 0;
  queue->tail = (struct segment){0};
  queue->late = NULL;
  queue->more = 0;
}

void queue_forget(struct queue *queue, CUcontext context) {
  pthread_mutex_lock(&queue->lock);
  for (int i = 0; i < MARKS; i++) {
    if (queue->marks[i].context != context) continue;
    queue->marks[i].event = NULL;
    queue->marks[i].follows = 0;
    queue->marks[i].segment = (struct segment){0};
  }
  if (queue->late_context == context) queue->late = NULL;
  pthread_mutex_unlock(&queue->lock);
}

void queue_begin(struct queue *queue, CUstream stream, Record record) {
  int64_t marked = atomic_load(&queue->marked);
  if (now_ns() - marked < MARK_NS) return; /* the last mark serves as well */
  pthread_mutex_lock(&queue->lock);
  struct calls calls = begin_calls();
  take_done(queue);
  if (calls.relaxed && queue->first == queue->next) {
    put_mark(queue, calls.before, stream, record);
    queue->tail.after_rest = atomic_load(&queue->marked) != marked;
  }
  end_calls(&calls);
  pthread_mutex_unlock(&queue->lock);
}

int64_t queue_length(const struct queue *queue, uint16_t kind) { return queue->units[kind] ? queue->units[kind] : FIRST_UNIT_NS; }

int queue_add(struct queue *queue, CUstream stream, Record record, uint16_t kind, int64_t began, int shared, int64_t most) {
  int full = 0;
  pthread_mutex_lock(&queue->lock);
  struct segment *tail = &queue->tail;
  if (!tail->launches) tail->began = began;
  int64_t between = most / 2 < MARK_NS ? most / 2 : MARK_NS;
  tail->unknown = !queue->units[kind];
  tail->shared |= shared;
  tail->kinds[tail->launches++] = kind;
  tail->expected += queue_length(queue, kind);
  int is_due = tail->unknown || tail->after_rest || tail->expected >= between || began - queue->marked > MARK_NS;
  if (is_due || tail->launches == MOST_UNMARKED) {
    struct calls calls = begin_calls();
    put_mark(queue, calls.before, stream, record);
    end_calls(&calls);
    full = ahead(queue) > most;
  }
  pthread_mutex_unlock(&queue->lock);
  return full;
}

void queue_wait(struct queue *queue, int64_t most) {
  pthread_mutex_lock(&queue->lock);
  struct calls calls = begin_calls();
  while (queue->first != queue->next && ahead(queue) > most) wait_for_first(queue);
  end_calls(&calls);
  pthread_mutex_unlock(&queue->lock);
}

int queue_is_done(struct queue *queue) {
  if (pthread_mutex_trylock(&queue->lock)) return 0; /* a thread launches */
  struct calls calls = begin_calls();
  take_done(queue);
  end_calls(&calls);
  int done = queue->first == queue->next && !queue->late && left_of(&queue->tail) <= 0;
  if (done) queue->tail = (struct segment){0};
  pthread_mutex_unlock(&queue->lock);
  return done;
}

void queue_drain(struct queue *queue) {
  pthread_mutex_lock(&queue->lock);
  struct calls calls = begin_calls();
  while (queue->first != queue->next) wait_for_first(queue);
  end_calls(&calls);
  int64_t left = left_of(&queue->tail);
  queue->tail = (struct segment){0};
  pthread_mutex_unlock(&queue->lock);
  if (left > 0) usleep((useconds_t)(left / 1000));
}
