/* The work that this process has queued on a device, as marks between its launches tell.
 *
 * A mark is an event behind a launch. How long a launch takes is learned from the marks, for each kernel and size of its grid. */
#ifndef LADING_QUEUE_H
#define LADING_QUEUE_H
#include <stdatomic.h>

#include "driver.h"

enum {
  MARKS = 32,
  MOST_UNMARKED = 16, /* launches between two marks: of them it is not known whether they are done */
  KINDS = 1024,       /* of launches whose length is remembered */
};

/* Launches since the mark before. */
struct segment {
  int launches;
  int unknown;      /* the last one is of a kind that was not measured yet */
  int after_rest;   /* a mark was put before the first one, which follows a time without launches: another is put behind it */
  int shared;       /* the device may have worked for others meanwhile, so that the launches may take less than the time of all */
  int64_t expected; /* time of all, in ns */
  int64_t began;    /* when the first one was made */
  uint16_t kinds[MOST_UNMARKED];
};

struct queue {
  pthread_mutex_t lock;
  struct {
    CUevent event;
    CUcontext context; /* of the event */
    int follows;       /* the one before was not done when this was recorded: the time between them is that of the launches */
    struct segment segment;
  } marks[MARKS];
  unsigned first, next;   /* marks that are not known to be done */
  struct segment tail;    /* launches since the last mark */
  _Atomic int64_t marked; /* when the last mark was put */
  CUevent late;           /* event of a mark for which nobody waits any longer; NULL: there is none */
  CUcontext late_context;
  int64_t late_from;      /* since when its launches are not waited for */
  _Atomic int64_t more;   /* time that launches took beyond the expected, and that is not counted yet */
  int32_t units[KINDS];   /* time of a launch of each kind, as learned, in ns; 0: not measured yet */
};

typedef CUresult (*Record)(CUevent, CUstream);

/* Return the kind of a launch: of which kernel or graph, and of how many blocks. */
static inline uint16_t kind_of(const void *work, uint64_t blocks) {
  uint64_t mixed = ((uint64_t)(uintptr_t)work >> 4) * 0x9E3779B97F4A7C15u ^ blocks * 0xD6E8FEB86659FD93u;
  return (uint16_t)(mixed >> 54);
}

void queue_reset(struct queue *);
/* Forget the marks of a context that has ended, with its work. */
void queue_forget(struct queue *, CUcontext);
/* Put a mark before a launch that follows a pause, by the thread that is about to launch on the stream, so that it is measured. */
void queue_begin(struct queue *, CUstream, Record);
/* Return the expected time of a launch. */
int64_t queue_length(const struct queue *, uint16_t kind);
/* Count a launch, by the thread that made it. `began`: when the driver was called. `shared`: the device may work for others meanwhile.
 * Return whether more work than `most` is queued, so that queue_wait should follow. */
int queue_add(struct queue *, CUstream, Record, uint16_t kind, int64_t began, int shared, int64_t most);
/* Wait until no more work than this is queued; no more than a second for one mark. */
void queue_wait(struct queue *, int64_t most);
/* Return whether the device has done all work. Does not wait. */
int queue_is_done(struct queue *);
/* Wait until the device has done all work; no more than a second for one mark. */
void queue_drain(struct queue *);
#endif
